-- Each table that a dump contains notes its load: see sql/internal/restore.sql. The trigger costs
-- claims nothing, because they insert without triggers. A trigger for each row would be slow.
DO $$
DECLARE
    dumped pg_catalog.regclass;
BEGIN
    FOR dumped IN
        SELECT c.oid
          FROM pg_catalog.pg_extension e, pg_catalog.unnest(e.extconfig) AS o (oid)
          JOIN pg_catalog.pg_class c USING (oid)
         WHERE e.extname OPERATOR(pg_catalog.=) 'idem' AND c.relkind OPERATOR(pg_catalog.=) 'r'
    LOOP
        EXECUTE pg_catalog.format(
            'CREATE TRIGGER note_load BEFORE INSERT ON %s '
            'FOR EACH STATEMENT EXECUTE FUNCTION idem.note_load()', dumped);
        EXECUTE pg_catalog.format('ALTER TABLE %s ENABLE ALWAYS TRIGGER note_load', dumped);
    END LOOP;
END
$$;
