-- A consumer that trusts the broker to deliver once.

UPDATE stock_item SET reserved = reserved + 2 WHERE book_id = :'dune';
