//! Consumers that are killed. Invariants: I1, I2, I4.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::fixtures::{Fixture, id, url};

const ORMS: [&str; 2] = ["seaorm", "diesel"];

/// Returns the command of a consumer.
fn consumer(fixture: &Fixture, orm: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_idem-rust-orms"));
    let url = match orm {
        "seaorm" => url(&fixture.config()),
        _ => fixture.database.direct_url(),
    };
    command.arg(orm).arg(url).args(arguments);
    command.stdout(Stdio::piped()).kill_on_drop(true);
    command
}

/// Starts a consumer, and kills it at the point at which it stops.
async fn kill_at(fixture: &Fixture, orm: &str, point: &str, further: &[&str]) {
    let arguments = [&[point], further].concat();
    let mut consumer = consumer(fixture, orm, &arguments).spawn().unwrap();
    let mut lines = BufReader::new(consumer.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("stopped"));
    // SIGKILL.
    consumer.kill().await.unwrap();
    // The server ends the session of the consumer when it reads from the closed connection.
    let others = "SELECT count(*) FROM pg_stat_activity \
                  WHERE datname = current_database() AND pid <> pg_backend_pid() \
                  AND backend_type = 'client backend'";
    loop {
        let row = fixture.observer.query_one(others, &[]).await.unwrap();
        if row.get::<_, i64>(0) == 0 {
            break;
        }
        tokio::task::yield_now().await;
    }
}

async fn run(fixture: &Fixture, orm: &str, arguments: &[&str]) {
    let status = consumer(fixture, orm, arguments).status().await.unwrap();
    assert!(status.success(), "{orm}: {status}");
}

async fn fixture_with_a_message() -> Fixture {
    let fixture = Fixture::new().await;
    let insert = "INSERT INTO queue VALUES ('m', 7, 5)";
    fixture.observer.batch_execute(insert).await.unwrap();
    fixture
}

/// Goal: a consumer that is killed before its commit, or before its acknowledgement, pays once.
#[tokio::test]
async fn killed_consumer_pays_once() {
    for orm in ORMS {
        for (point, paid) in [("before-commit", 0), ("after-commit", 1)] {
            let fixture = fixture_with_a_message().await;
            kill_at(&fixture, orm, point, &[]).await;
            assert_eq!(
                fixture.paid().await,
                (paid, 1000 - 5 * paid),
                "{orm} {point}"
            );
            assert_eq!(fixture.queued().await, 1);
            run(&fixture, orm, &[]).await;
            assert_eq!(fixture.paid().await, (1, 995), "{orm} {point}");
            assert_eq!(fixture.recorded(&id("m")).await.len(), 1);
            assert_eq!(fixture.queued().await, 0);
        }
    }
}

/// The broken variant: a consumer without the claim pays twice.
#[tokio::test]
async fn killed_consumer_without_a_claim_pays_twice() {
    for orm in ORMS {
        let fixture = fixture_with_a_message().await;
        kill_at(&fixture, orm, "after-commit", &["no-claim"]).await;
        run(&fixture, orm, &["no-claim"]).await;
        assert_eq!(fixture.paid().await, (2, 990), "{orm}");
    }
}
