-- The errors of the maintenance.

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
