CREATE TABLE overhead (id integer PRIMARY KEY, balance bigint NOT NULL);
INSERT INTO overhead VALUES (1, 0), (2, 0);
