-- Forbidding COMMIT. The functions are in extension/src/sql_api/commit.rs.

CREATE FUNCTION idem_forbid_commit() RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_forbid_commit_wrapper';
COMMENT ON FUNCTION idem_forbid_commit() IS
    'Forbids COMMIT and PREPARE TRANSACTION in the current transaction: they fail with 2D000. As '
    'after each error, the transaction can then only be rolled back. COMMIT /* idem */ commits it, '
    'and fails with 25P02 in a failed transaction, with 25P01 outside of this one, and with 25000 '
    'if the role or the search_path was changed so that this function cannot be called. After '
    'idem_allow_commit a plain COMMIT succeeds. A program calls this function after BEGIN, before it runs code that must not '
    'commit, for example the handler of a message. Writes nothing. ROLLBACK TO SAVEPOINT does not '
    'change it. Errors: 25P01 (no transaction block).';

CREATE FUNCTION idem_allow_commit() RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_allow_commit_wrapper';
COMMENT ON FUNCTION idem_allow_commit() IS
    'Allows COMMIT again after idem_forbid_commit. Send it and COMMIT in one query: if it fails, '
    'the server skips the COMMIT. Errors: 25P01 (COMMIT is not forbidden: the transaction in '
    'which idem_forbid_commit was called has ended, or COMMIT is already allowed).';
