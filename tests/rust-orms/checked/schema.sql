CREATE TABLE account (id integer PRIMARY KEY, balance bigint NOT NULL);
