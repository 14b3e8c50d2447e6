"""Checks META.json against the PGXN Meta Spec 1.0.0: what must be there, and
of which form what is there must be."""
import json
import sys

import jsonschema

TERM = {"type": "string", "minLength": 2, "pattern": r"^[^\s/\\\x00-\x1f\x7f]+$"}
VERSION = {"type": "string", "pattern": r"^\d+\.\d+\.\d+(-[0-9A-Za-z]+)?$"}
TEXT = {"type": "string", "minLength": 1}
TEXTS = {"anyOf": [TEXT, {"type": "array", "items": TEXT, "minItems": 1}]}
URI = {"type": "string", "pattern": r"^[a-z]+:\S+$"}
PREREQS = {
    "type": "object",
    "propertyNames": {"enum": ["configure", "build", "test", "runtime", "develop"]},
    "additionalProperties": {
        "type": "object",
        "propertyNames": {"enum": ["requires", "recommends", "suggests", "conflicts"]},
        "additionalProperties": {"type": "object", "additionalProperties": VERSION},
    },
}
SPEC = {
    "type": "object",
    "required": ["name", "version", "abstract", "maintainer", "license", "provides", "meta-spec"],
    "propertyNames": {"pattern": "^([xX]_.*|name|version|abstract|maintainer|license|provides"
                                 "|meta-spec|description|generated_by|no_index|prereqs"
                                 "|release_status|resources|tags)$"},
    "properties": {
        "name": TERM,
        "version": VERSION,
        "abstract": TEXT,
        "description": TEXT,
        "maintainer": TEXTS,
        "license": {"anyOf": [
            {"enum": ["apache_1_1", "apache_2_0", "artistic_1", "artistic_2", "bsd", "gpl_1",
                      "gpl_2", "gpl_3", "lgpl_2_1", "lgpl_3_0", "mit", "mozilla_1_0",
                      "mozilla_1_1", "openssl", "perl_5", "postgresql", "zlib",
                      "open_source", "restricted", "unrestricted", "unknown"]},
            {"type": "object", "additionalProperties": URI, "minProperties": 1}]},
        "provides": {
            "type": "object",
            "minProperties": 1,
            "propertyNames": TERM,
            "additionalProperties": {
                "type": "object",
                "required": ["file", "version"],
                "properties": {"file": TEXT, "version": VERSION, "abstract": TEXT, "docfile": TEXT},
            },
        },
        "meta-spec": {
            "type": "object",
            "required": ["version"],
            "properties": {"version": VERSION, "url": URI},
        },
        "prereqs": PREREQS,
        "release_status": {"enum": ["stable", "testing", "unstable"]},
        "tags": {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 255}},
        "resources": {"type": "object"},
    },
}

with open(sys.argv[1], encoding="utf-8") as meta:
    jsonschema.validate(json.load(meta), SPEC)
