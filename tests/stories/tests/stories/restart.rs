//! Tests that kill the database server while messages are pending.

use std::path::Path;

use anyhow::Result;
use idem_cluster::{Cluster, Install};
use idem_stories::{
    Worker,
    work::{Role, Wish, notes},
};
use idem_testkit::{Session, until};
use tokio::task::block_in_place;

use crate::WORKER;

fn start_cluster() -> Result<Cluster> {
    block_in_place(|| {
        let cluster = Cluster::builder(&Install::from_env()?)
            .name("stories")
            .start()?;
        cluster.psql("postgres", "CREATE EXTENSION idem")?;
        Ok(cluster)
    })
}

/// Kills the server with SIGKILL and starts it again from the files on disk.
fn crash(cluster: &mut Cluster) -> Result<()> {
    block_in_place(|| {
        cluster.kill()?;
        cluster.start()
    })
}

/// Leases, back-offs, schedules, dead letters and the journal continue after a crash of the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_crash_keeps_pending_messages_and_journal() -> Result<()> {
    let mut cluster = start_cluster()?;
    let client = Session::superuser(&cluster, "postgres").await?;
    client
        .run("SELECT idem_configure_retries('shop', base => '3 s', jitter => 0)")
        .await?;
    let token = client
        .text("SELECT token FROM idem_acquire('held', 'shop', '1 hour')")
        .await?;
    let tired = client
        .text("SELECT token FROM idem_acquire('tired', 'shop')")
        .await?;
    // `due` is computed before the back-off of 3 s begins, so the message is not redelivered before
    // `due`.
    let due = client.text("SELECT clock_timestamp() + '3 s'").await?;
    client
        .run(&format!(
            "SELECT idem_release('tired', 'shop', {tired}, 'a bad day')"
        ))
        .await?;
    client
        .run(&format!(
            "SELECT idem_receive('later', 'inbox', '1'::jsonb, deliver_after => '{due}');
             SELECT idem_receive('doomed', 'inbox', '2'::jsonb);
             SELECT idem_begin_call('held', 'shop', 'charge');
             SELECT idem_finish_call('held', 'shop', 'charge', '7');
             SELECT idem_begin_call('held', 'shop', 'mail')"
        ))
        .await?;
    client
        .run(
            "SELECT idem_release('doomed', 'inbox', token, 'no way', true) FROM idem_next('inbox')",
        )
        .await?;
    drop(client);

    crash(&mut cluster)?;
    let client = Session::superuser(&cluster, "postgres").await?;
    // No other consumer gets the leased message, and its holder can complete it.
    let again = "SELECT outcome, retry_after > '30 min' FROM idem_acquire('held', 'shop')";
    assert_eq!(client.text(again).await?, "in_progress|t");
    let calls = "SELECT step, state, response FROM idem_calls('held', 'shop') ORDER BY step";
    assert_eq!(
        client.text(calls).await?,
        "charge|done|7\nmail|unknown|NULL"
    );
    client
        .run(&format!("SELECT idem_complete('held', 'shop', {token})"))
        .await?;
    assert_eq!(
        client
            .text("SELECT outcome FROM idem_acquire('held', 'shop')")
            .await?,
        "duplicate"
    );
    // Messages that wait for a retry and scheduled messages are delivered when they are due.
    let too_early = format!(" AND clock_timestamp() < '{due}'");
    let tired =
        "SELECT attempt, last_error FROM idem_acquire('tired', 'shop') WHERE outcome = 'acquired'";
    let later = "SELECT id, attempt FROM idem_next('inbox')";
    for (sql, expected) in [(tired, "2|a bad day"), (later, "later|1")] {
        until("the message is delivered", async || {
            let given = client.text(sql).await?;
            assert!(given.is_empty() || given == expected, "{given}");
            Ok(!given.is_empty())
        })
        .await?;
        assert_eq!(
            client
                .text(&format!("SELECT 'early' WHERE true{too_early}"))
                .await?,
            ""
        );
    }
    let letters = "SELECT id, attempt, errors -> 0 ->> 'error' FROM idem.dead_letter";
    assert_eq!(client.text(letters).await?, "doomed|1|no way");
    Ok(())
}

/// The server crashes while the workers are alive and handle messages. No message is lost or
/// handled twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_handle_messages_once_despite_server_crashes() -> Result<()> {
    const MESSAGES: usize = 300;
    let mut cluster = start_cluster()?;
    let client = Session::superuser(&cluster, "postgres").await?;
    notes::make_table(&client).await?;
    let inbox = Role::Durable.destination();
    // A crash can use up an attempt of each message that is being handled, so many attempts are
    // allowed.
    client
        .run(&format!(
            "SELECT idem_configure_retries('{inbox}', max_attempts => 20, base => '20 ms')"
        ))
        .await?;
    // Every tenth message fails once.
    let payload = "jsonb_build_object('fails', CASE n % 10 WHEN 0 THEN 1 ELSE 0 END)";
    let receive = format!(
        "SELECT idem_receive('m' || n, '{inbox}', {payload}) FROM generate_series(1, {MESSAGES}) n"
    );
    client.run(&receive).await?;
    let arguments = [
        Role::Durable.to_string(),
        format!("--database={}", cluster.connection_string("postgres")),
        format!("--payload={}", serde_json::to_string(&Wish::default())?),
    ];
    let workers = [
        Worker::start(Path::new(WORKER), &arguments)?,
        Worker::start(Path::new(WORKER), &arguments)?,
    ];
    let mut client = client;
    for crashes in 1..=2 {
        until("a part of the messages is handled", async || {
            Ok(handled(&client).await? >= crashes * MESSAGES / 4)
        })
        .await?;
        crash(&mut cluster)?;
        client = Session::superuser(&cluster, "postgres").await?;
    }
    until("all messages are handled", async || {
        Ok(handled(&client).await? == MESSAGES)
    })
    .await?;
    for worker in workers {
        worker.dismiss().await?;
    }
    let effects = format!(
        "SELECT count(*), count(DISTINCT e.payload) FROM generate_series(1, {MESSAGES}) n, \
         idem_effects('m' || n, '{inbox}') e"
    );
    assert_eq!(
        client.text(&effects).await?,
        format!("{MESSAGES}|{MESSAGES}")
    );
    assert_eq!(
        client.text("SELECT count(*) FROM idem.dead_letter").await?,
        "0"
    );
    Ok(())
}

async fn handled(client: &Session) -> Result<usize> {
    Ok(client
        .text("SELECT count(*) FROM idem.inbox")
        .await?
        .parse()?)
}
