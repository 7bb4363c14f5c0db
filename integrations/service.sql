CREATE TABLE account (id int8 PRIMARY KEY, paid int8 NOT NULL);

CREATE ROLE shop_consumer LOGIN;
GRANT SELECT, INSERT, UPDATE ON account TO shop_consumer;
SELECT idem_grant('shop_consumer', 'consumer');

CREATE ROLE shop_relay LOGIN;
SELECT idem_grant('shop_relay', 'relay');
