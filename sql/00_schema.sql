-- The ground: who may install, where the tables live. No IF NOT EXISTS and no OR REPLACE anywhere in an install script:
-- an object that somebody prepared under our name must stop the installation, not take part in it (CVE-2022-2625).

DO $$
BEGIN
    IF pg_catalog.getdatabaseencoding() OPERATOR(pg_catalog.<>) 'UTF8' THEN
        RAISE EXCEPTION 'idem needs a database with encoding UTF8, this one has %', pg_catalog.getdatabaseencoding()
            USING ERRCODE = 'feature_not_supported',
                  HINT = 'Effects are kept and published as UTF-8 bytes: CREATE DATABASE ... ENCODING ''UTF8'' TEMPLATE template0.';
    END IF;
END
$$;

CREATE SCHEMA idem;
COMMENT ON SCHEMA idem IS 'Tables and views of the extension idem. Applications need no privilege here: see idem_grant.';
