-- The errors of the maintenance, and the fences that it waits at.

CREATE TABLE idem.maintenance_error (
    since    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    step     text        NOT NULL,
    sqlstate text        NOT NULL,
    message  text        NOT NULL,
    CONSTRAINT maintenance_error_pkey PRIMARY KEY (step)
);
COMMENT ON TABLE  idem.maintenance_error IS
    'The maintenance steps that currently fail: see idem_health.';
COMMENT ON COLUMN idem.maintenance_error.since IS
    'The time since which the step has failed in every pass.';
COMMENT ON COLUMN idem.maintenance_error.message IS 'The last error of the step.';

CREATE TABLE idem.fence (
    name       text   NOT NULL,
    step       text   NOT NULL,
    server_run text   NOT NULL,
    lockers    text[] NOT NULL,
    CONSTRAINT fence_pkey PRIMARY KEY (name)
);
COMMENT ON TABLE  idem.fence IS
    'The transactions that maintenance steps and filters wait for. Not part of a dump.';
COMMENT ON COLUMN idem.fence.name IS 'The maintenance step that waits, or the filter.';
COMMENT ON COLUMN idem.fence.step IS
    'The committed step after which the transactions were listed.';
COMMENT ON COLUMN idem.fence.server_run IS
    'The database and the start of the shared memory in which the list is valid: see '
    'idem.server_run.';
COMMENT ON COLUMN idem.fence.lockers IS
    'Virtual transaction ids, as in pg_locks.virtualtransaction; empty if the fence has passed.';
