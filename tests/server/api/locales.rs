//! Results do not depend on the date format or the client encoding of a session.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use anyhow::Result;
use idem_testkit::{Database, Session};

/// The settings of a session for dates, intervals, bytes and literals do not change a result.
#[tokio::test]
async fn session_formats_do_not_change_results() -> Result<()> {
    let db = Database::with_idem("datestyle").await?;
    let session = db.connect().await?;
    for (n, settings) in [
        "SET DateStyle = 'German'; SET IntervalStyle = 'sql_standard';
         SET TimeZone = 'Pacific/Chatham'",
        "SET DateStyle = 'SQL, DMY'; SET IntervalStyle = 'iso_8601';
         SET TimeZone = 'America/St_Johns'",
        "SET DateStyle = 'Postgres, MDY'; SET IntervalStyle = 'postgres_verbose';
         SET bytea_output = 'escape'; SET extra_float_digits = -5",
        "SET standard_conforming_strings = off; SET transform_null_equals = on;
         SET array_nulls = off; SET xmloption = document",
    ]
    .into_iter()
    .enumerate()
    {
        session.run(settings).await?;
        session
            .run(&format!(
                r#"SELECT idem_configure('orders', '3 days 04:05:06');
                   SELECT idem_set_retention('short', '1 hour 0.5 seconds');
                   SELECT idem_try_record('m{n}', 'orders',
                       '{{"topic": "t", "payload": {{"at": 1.25}},
                          "deliver_after": "2030-02-03T04:05:06.5Z"}}')"#
            ))
            .await?;
        session.run("CALL idem_maintain()").await?;
        assert_eq!(
            session
                .text(
                    "SELECT string_agg(DISTINCT status, ',') FROM idem_health()
                      WHERE check_name <> 'worker'"
                )
                .await?,
            "ok",
            "{settings}"
        );
        assert_eq!(
            session
                .text(&format!(
                    "SELECT extract(epoch FROM deliver_after),
                            encode(payload, 'hex') = encode('{{\"at\": 1.25}}'::bytea, 'hex'),
                            handled_at = recorded_at, idem_is_claimed('m{n}', 'orders')
                       FROM idem_effects('m{n}', 'orders'),
                            idem_claim('m{n}', 'orders', sent_at => now())"
                ))
                .await?,
            "1896321906.500000|t|t|t",
            "{settings}"
        );
        assert_eq!(
            session
                .text(
                    "SELECT extract(epoch FROM retention) FROM idem.destination
                      UNION ALL SELECT extract(epoch FROM retention) FROM idem.ring
                      WHERE name = 'short'"
                )
                .await?,
            "273906.000000\n3600.500000",
            "{settings}"
        );
    }
    Ok(())
}

/// I1: the same id in two client encodings is one message.
#[tokio::test]
async fn i1_id_is_the_same_in_every_client_encoding() -> Result<()> {
    let db = Database::with_idem("client_encoding").await?;
    assert_eq!(
        db.connect()
            .await?
            .text("SELECT idem_try_claim('caf\u{e9}', 'd\u{e9}p\u{f4}t')")
            .await?,
        "t"
    );
    let sql = OsStr::from_bytes(b"SELECT idem_try_claim('caf\xe9', 'd\xe9p\xf4t')");
    let output = db.cluster().run(
        "psql",
        [OsStr::new("-XAtc"), sql, OsStr::new(db.name())],
        &[
            ("PGCLIENTENCODING", "LATIN1"),
            ("PGOPTIONS", "-c idem.lone_claims=allow"),
        ],
    )?;
    assert_eq!(output, "f");
    Ok(())
}

/// CREATE EXTENSION fails in a database with another encoding than UTF8.
#[tokio::test]
async fn create_extension_fails_without_utf8() -> Result<()> {
    let db = Database::empty("latin1").await?;
    let latin1 = format!("{}_really", db.name());
    let admin = db.connect().await?;
    admin
        .run(&format!(
            "CREATE DATABASE {latin1} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"
        ))
        .await?;
    let session = Session::connect(db.cluster(), &latin1, "postgres").await?;
    let refusal = session.refused("CREATE EXTENSION idem").await?;
    assert_eq!(refusal.sqlstate, "0A000");
    assert!(refusal.hint.contains("UTF8"), "{refusal:?}");
    assert_eq!(
        session.text("SELECT to_regnamespace('idem')").await?,
        "NULL"
    );
    drop(session);
    admin
        .run(&format!("DROP DATABASE {latin1} WITH (FORCE)"))
        .await?;
    Ok(())
}
