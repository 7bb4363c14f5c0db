-- Checks the database and creates the schema of the tables.
--
-- No install script uses IF NOT EXISTS or OR REPLACE: if another role has created an object of the
-- same name before, the installation must fail and not use that object (CVE-2022-2625).
--
-- The script runs with the schema of the extension in search_path, and another role may have
-- created functions and operators there. PostgreSQL prefers one that needs no cast, also to one of
-- pg_catalog. So a name is qualified, or a literal has a type, where the function of pg_catalog
-- needs a cast, is polymorphic or is variadic. This applies to everything that is parsed at
-- installation: DO blocks, constraints, defaults, views, and bodies with RETURN or BEGIN ATOMIC.
-- Bodies in quotes have a search_path of their own. All bodies call the functions of that schema
-- with all arguments and with their exact types.

DO $$
BEGIN
    IF pg_catalog.getdatabaseencoding() OPERATOR(pg_catalog.<>) 'UTF8' THEN
        RAISE EXCEPTION 'idem requires encoding UTF8, but this database has encoding %',
            pg_catalog.getdatabaseencoding()
            USING ERRCODE = 'feature_not_supported',
                  HINT = 'Create the database with CREATE DATABASE ... ENCODING ''UTF8'' TEMPLATE '
                         'template0: effects are stored and published as UTF-8 bytes.';
    END IF;
END
$$;

CREATE SCHEMA idem;

CREATE FUNCTION idem.check_preloaded() RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'check_preloaded_wrapper';
COMMENT ON FUNCTION idem.check_preloaded() IS
    'Errors: 58000 (the server has not loaded the library at its start).';
SELECT idem.check_preloaded();

COMMENT ON SCHEMA idem IS
    'Tables and views of the extension idem. Applications need no privilege on this schema: see '
    'idem_grant.';
