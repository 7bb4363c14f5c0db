-- The identity of the installation, which a failover, a dump and an update keep, and what a restore
-- has loaded: see sql/internal/restore.sql.
--
-- The message identity is a column here and no setting: a standby with another value in its
-- postgresql.conf would process every message again after its promotion. With the identity `id`
-- all claims have the destination `*`.

CREATE TABLE idem.installation (
    id               int2 NOT NULL DEFAULT 1,
    installation     uuid NOT NULL DEFAULT pg_catalog.gen_random_uuid(),
    message_identity text NOT NULL DEFAULT 'id_and_destination',
    CONSTRAINT installation_pkey PRIMARY KEY (id),
    CONSTRAINT installation_is_one_row CHECK (id = 1),
    CONSTRAINT installation_knows_message_identity
        CHECK (message_identity IN ('id_and_destination', 'id'))
);
COMMENT ON TABLE  idem.installation IS
    'The identity of this installation of the extension. A dump keeps it.';
COMMENT ON COLUMN idem.installation.installation IS
    'A random id. Message ids of effects and idempotency keys of external calls are derived from '
    'it, so that they differ between installations: see idem_new_installation. The rows of '
    'idem.clock, idem.ring, idem.pending_rotation and idem.payload_rotation contain it too.';
COMMENT ON COLUMN idem.installation.message_identity IS
    'What makes two messages the same. With id, all claims belong to the destination *. '
    'idem_set_message_identity changes it.';
INSERT INTO idem.installation DEFAULT VALUES;

-- This table is not dumped, because it describes this database.
CREATE TABLE idem.loaded_table (
    name text NOT NULL,
    tx   xid8 NOT NULL,
    CONSTRAINT loaded_table_pkey PRIMARY KEY (name, tx)
);
COMMENT ON TABLE  idem.loaded_table IS
    'The tables that a restore has loaded since the last idem_finish_restore.';
COMMENT ON COLUMN idem.loaded_table.tx IS 'The transaction that loaded the table.';
