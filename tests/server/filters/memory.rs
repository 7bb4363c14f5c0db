//! The shared memory of the filters.

use anyhow::{Result, ensure};
use idem_testkit::presence::check_leased_message_is_found;
use idem_testkit::ring::build_filters;
use idem_testkit::{Session, until};

use super::{claim, cluster, seal, status};

async fn reasons(session: &Session) -> Result<String> {
    session
        .text("SELECT DISTINCT reason FROM idem.filters ORDER BY 1")
        .await
}

/// I1: without memory claims read the slices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_claims_are_found_without_filters() -> Result<()> {
    let server = cluster("filters-none")?
        .setting("idem.filter_memory", "0")
        .start()?;
    let session = Session::in_database_with_idem(&server, "shop").await?;
    ensure!(claim(&session, "m").await?);
    session.run("CALL idem_maintain()").await?;
    seal(&session).await?;
    ensure!(!claim(&session, "m").await?);
    assert_eq!(reasons(&session).await?, "idem.filter_memory is 0");
    let health = "SELECT status, detail FROM idem_health() WHERE check_name = 'filters'";
    let without = "ok|this server uses no filters";
    assert_eq!(session.text(health).await?, without);
    Ok(())
}

/// I9. Goal: the databases of a server share the memory, and one database can use all of it. Health
/// names the databases that use it, also in a database that gets none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i9_health_names_databases_that_use_the_memory() -> Result<()> {
    let server = cluster("filters-shared")?
        .setting("idem.filter_memory", "1")
        .start()?;
    let built = "SELECT NOT (SELECT bool_or(idem.build_filters(r)) FROM generate_series(0, 2) r)";
    let mut sessions = Vec::new();
    for (database, slices) in [("large", vec![2, 3]), ("small", vec![2])] {
        let session = Session::in_database_with_idem(&server, database).await?;
        ensure!(claim(&session, "m").await?);
        for slice in slices {
            session
                .run(&format!(
                    "INSERT INTO idem.inbox_standard_{slice} (key, claimed_at, destination)
                         SELECT gen_random_uuid(), now(), 1 FROM generate_series(1, 400000);
                     ANALYZE idem.inbox_standard_{slice};
                     SELECT idem_finish_restore()"
                ))
                .await?;
        }
        until("the filters are built", async || {
            session.run("CALL idem_maintain()").await?;
            Ok(session.text(built).await? == "t")
        })
        .await?;
        sessions.push(session);
    }
    let health = "SELECT detail FROM idem_health() WHERE check_name = 'filters'";
    let health = sessions[1].text(health).await?;
    ensure!(
        health.contains("idem.filter_memory is 1MB, and these databases use most of it: large ("),
        "{health}"
    );
    Ok(())
}

/// I1: a slice that finds no memory has no filter. Its rows are found, and health names the reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_full_memory_leaves_slices_without_filters() -> Result<()> {
    // There is room for the filters of about 900,000 claims with 8 bits for each.
    let server = cluster("filters-full")?
        .setting("idem.filter_memory", "1")
        .start()?;
    let session = Session::in_database_with_idem(&server, "shop").await?;
    ensure!(claim(&session, "m").await?);
    let health = "SELECT status, detail FROM idem_health() WHERE check_name = 'filters'";
    let without_problem = "ok|every large slice has a filter";
    assert_eq!(session.text(health).await?, without_problem);
    for slice in [2, 3, 4] {
        session
            .run(&format!(
                "INSERT INTO idem.inbox_standard_{slice} (key, claimed_at, destination)
                     SELECT gen_random_uuid(), now(), 1 FROM generate_series(1, 400000);
                 ANALYZE idem.inbox_standard_{slice};
                 SELECT idem_finish_restore()"
            ))
            .await?;
    }
    until("the maintenance has nothing more to build", async || {
        session.run("CALL idem_maintain()").await?;
        let built = "SELECT NOT (SELECT bool_or(idem.build_filters(r))
                                   FROM generate_series(0, 2) r)";
        Ok(session.text(built).await? == "t")
    })
    .await?;
    let large = "SELECT string_agg(status, ', ' ORDER BY status)
                   FROM idem.filters WHERE ring = 'standard' AND slice IN (2, 3, 4)";
    assert_eq!(session.text(large).await?, "complete, none, none");
    let health = session.text(health).await?;
    ensure!(
        health.starts_with("warning|claims read large slices")
            && health.contains("2 slices of ring standard (idem.filter_memory is used up)"),
        "{health}"
    );
    for slice in [2, 3, 4] {
        session.run("BEGIN").await?;
        let again = format!(
            "SELECT count(*) FROM (SELECT key FROM idem.inbox_standard_{slice} LIMIT 100) known
              WHERE idem_try_claim(known.key, 'd')"
        );
        assert_eq!(session.text(&again).await?, "0", "slice {slice}");
        session.run("ROLLBACK").await?;
    }
    Ok(())
}

/// Databases with and without memory for their filters find their claims, and the memory of dropped
/// databases is used again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_many_databases_share_the_memory() -> Result<()> {
    /// 1 MB has 16 chunks, and a database needs one chunk for each slice with a filter.
    const DATABASES: usize = 4;
    let server = cluster("filters-many")?
        .setting("idem.filter_memory", "1")
        .setting("idem.naptime", "100ms")
        .setting("idem.databases", "none")
        .start()?;
    let mut sessions = Vec::new();
    for n in 0..DATABASES {
        let session = Session::in_database_with_idem(&server, &format!("d{n}")).await?;
        ensure!(claim(&session, "m").await?);
        session.run("CALL idem_maintain()").await?;
        seal(&session).await?;
        ensure!(!claim(&session, "m").await?);
        sessions.push(session);
    }
    let last = sessions.pop().expect("a session");
    last.run("CALL idem_maintain()").await?;
    assert_eq!(status(&last, 0).await?, "none");
    drop(sessions);
    let admin = Session::in_empty_database(&server, "admin").await?;
    for n in 0..DATABASES - 1 {
        admin
            .run(&format!("DROP DATABASE d{n} WITH (FORCE)"))
            .await?;
    }
    // The launcher notices the dropped databases.
    until("the memory is free", async || {
        last.run("CALL idem_maintain()").await?;
        Ok(status(&last, 0).await? == "complete")
    })
    .await?;
    ensure!(!claim(&last, "m").await?);
    Ok(())
}

/// I1, I4: a database that finds no place in the shared memory has no filters, and its claims and
/// leased messages are found. It gets filters when another database is dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_claims_are_found_in_more_databases_than_places() -> Result<()> {
    /// The number of databases that can have filters.
    const PLACES: usize = 64;
    let server = cluster("filters-places")?
        .setting("idem.naptime", "100ms")
        .start()?;
    let postgres = Session::superuser(&server, "postgres").await?;
    drop(Session::in_database_with_idem(&server, "model").await?);
    postgres
        .run("ALTER DATABASE model ALLOW_CONNECTIONS false")
        .await?;
    let database = async |name: &str| {
        postgres
            .run(&format!("CREATE DATABASE {name} TEMPLATE model"))
            .await?;
        let session = Session::superuser(&server, name).await?;
        ensure!(claim(&session, "m").await?, "{name}");
        anyhow::Ok(session)
    };
    for n in 0..PLACES {
        drop(database(&format!("d{n}")).await?);
    }
    let last = database("without_place").await?;
    let batch = "SELECT idem_try_claim_batch(
                     ARRAY(SELECT 'm ' || n FROM generate_series(1, 10) n), 'd')";
    assert_eq!(last.text(batch).await?, "{t,t,t,t,t,t,t,t,t,t}");
    last.run("CALL idem_maintain()").await?;
    assert_eq!(reasons(&last).await?, "too many databases use idem");
    seal(&last).await?;
    ensure!(!claim(&last, "m").await?);
    assert_eq!(last.text(batch).await?, "{f,f,f,f,f,f,f,f,f,f}");
    check_leased_message_is_found(&last).await?;

    postgres.run("DROP DATABASE d0 WITH (FORCE)").await?;
    // The launcher notices the dropped database.
    until("the database has filters", async || {
        last.run("CALL idem_maintain()").await?;
        Ok(status(&last, 0).await? == "complete")
    })
    .await?;
    ensure!(!claim(&last, "m").await?);
    assert_eq!(last.text(batch).await?, "{f,f,f,f,f,f,f,f,f,f}");
    Ok(())
}

/// I1: a slice that gets more claims than its filter was prepared for gets a larger filter, and its
/// claims are found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_full_filter_is_built_again_with_more_memory() -> Result<()> {
    let server = cluster("filters-larger")?.start()?;
    let session = Session::in_database_with_idem(&server, "shop").await?;
    ensure!(claim(&session, "first").await?);
    build_filters(&session).await?;
    let size = "SELECT bytes FROM idem.filters WHERE ring = 'standard' AND slice = 0";
    let before: i64 = session.text(size).await?.parse()?;
    let writer = Session::superuser(&server, "shop").await?;
    writer
        .run("BEGIN; SELECT idem_try_claim('writer', 'd')")
        .await?;
    // The smallest filter is prepared for 21,845 claims.
    session
        .run(
            "BEGIN;
             SELECT idem_try_claim_batch(array_agg('m' || n), 'd') FROM generate_series(1, 90000) n
              GROUP BY n / 10000;
             COMMIT;
             ANALYZE idem.inbox_standard_0",
        )
        .await?;
    // The larger filter waits for the writer. The full one is in use meanwhile.
    session
        .run("SELECT count(idem.build_filters(1)) FROM generate_series(1, 20)")
        .await?;
    let used = "SELECT status, reason FROM idem.filters WHERE ring = 'standard' AND slice = 0";
    assert_eq!(
        session.text(used).await?,
        "complete|it is too small; a larger one is being built beside it"
    );
    let health = "SELECT status FROM idem_health() WHERE check_name = 'filters'";
    assert_eq!(session.text(health).await?, "ok");
    ensure!(!claim(&session, "m1").await?);
    writer.run("COMMIT").await?;
    until("the filter is larger", async || {
        session.run("SELECT idem.build_filters(1)").await?;
        let bytes: i64 = session.text(size).await?.parse()?;
        Ok(bytes > 2 * before && status(&session, 0).await? == "complete")
    })
    .await?;
    seal(&session).await?;
    session.run("BEGIN").await?;
    let again = "SELECT count(*) FROM generate_series(1, 90000, 9) n
                  WHERE idem_try_claim('m' || n, 'd')";
    assert_eq!(session.text(again).await?, "0");
    session.run("ROLLBACK").await?;
    // The look-ups of claims that are in no slice are counted.
    session.run("BEGIN").await?;
    session
        .run("SELECT idem_try_claim('n' || n, 'd') FROM generate_series(1, 20000) n")
        .await?;
    session.run("ROLLBACK").await?;
    let rate = "SELECT look_ups >= 19000, observed_false_positives < 0.02,
                       expected_false_positives < 0.02
                  FROM idem.filters WHERE ring = 'standard' AND slice = 0";
    assert_eq!(session.text(rate).await?, "t|t|t");
    Ok(())
}
