/*
 * Preloaded, and initialised first: Debian's libgpg-error allocates before ASan
 * is ready, in the middle of which ASan would wait for itself.
 */
#include <stdlib.h>

__attribute__((constructor))
static void
first(void)
{
	free(malloc(1));
}
