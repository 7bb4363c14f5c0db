//! Compiles every PL/pgSQL function. CREATE EXTENSION does not check function bodies, so without
//! this test an error in a body would appear only at the first use of the function.

use anyhow::Result;
use idem_testkit::Database;

/// Every PL/pgSQL function of the extension compiles.
#[tokio::test]
async fn every_function_compiles() -> Result<()> {
    let db = Database::with_idem("bodies").await?;
    let session = db.connect().await?;
    session.run("SET check_function_bodies = on").await?;
    let functions = session
        .text(
            "SELECT f.oid, f.oid::regprocedure FROM pg_proc f
               JOIN pg_language l ON l.oid = f.prolang AND l.lanname = 'plpgsql'
               JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = f.oid
                AND d.deptype = 'e'
               JOIN pg_extension x ON d.refclassid = 'pg_extension'::regclass AND x.oid = d.refobjid
                AND x.extname = 'idem'",
        )
        .await?;
    assert!(
        functions.lines().count() > 40,
        "PL/pgSQL functions are missing"
    );
    for function in functions.lines() {
        let oid = function.split('|').next().unwrap_or_default();
        session
            .run(&format!("SELECT plpgsql_validator({oid}) /* {function} */"))
            .await?;
    }
    Ok(())
}
