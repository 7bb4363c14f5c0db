-- Relays. The functions are in extension/src/sql_api/relays.rs.

CREATE FUNCTION idem_relay_wait(timeout_ms integer DEFAULT 1000) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_relay_wait_wrapper';
COMMENT ON FUNCTION idem_relay_wait(integer) IS
    'Waits at most timeout_ms milliseconds for effects that this session has not waited for '
    'before. Returns true if there may be such effects. A relay calls this function when '
    'idem_relay_next has returned no row. Errors: 22004 (null argument), 22023 (invalid argument).';
