//! Shared code of the clients without a broker: sessions that are opened again after every error,
//! and a clock.

use std::time::Duration;

use anyhow::Result;
use idem_runtime::terminated;
use nix::time::{ClockId, clock_gettime};
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};

use crate::range::live::{business::CONSUMER_ROLE, post::Post};

/// The pause after an error, before a session is opened again.
const PAUSE: Duration = Duration::from_millis(200);

/// Returns the monotonic clock of this machine in microseconds. The wall clock is not used, because
/// a campaign makes wall clocks jump.
pub fn monotonic_us() -> Result<i64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(now.tv_sec() * 1_000_000 + now.tv_nsec() / 1_000)
}

/// Repeats `work` in this number of sessions until the process receives SIGTERM. `work` gets the
/// client and the number of its session. After an error the session is closed and a new session is
/// opened.
pub async fn repeat<F>(post: &Post, sessions: usize, work: F) -> Result<()>
where
    F: AsyncFn(&mut Client, usize) -> Result<()> + Clone + 'static,
{
    let mut config: tokio_postgres::Config = post.database.parse()?;
    config.user(CONSUMER_ROLE);
    let local = tokio::task::LocalSet::new();
    let mut clients = JoinSet::new();
    for number in 0..sessions {
        let (config, work) = (config.clone(), work.clone());
        clients.spawn_local_on(
            async move { one_session(&config, number, work).await },
            &local,
        );
    }
    tokio::select! {
        () = terminated() => Ok(()),
        () = local => Ok(()),
    }
}

async fn one_session(
    config: &tokio_postgres::Config,
    number: usize,
    work: impl AsyncFn(&mut Client, usize) -> Result<()>,
) {
    loop {
        if let Ok((mut client, connection)) = config.connect(NoTls).await {
            let connection = tokio::spawn(connection);
            loop {
                if let Err(error) = work(&mut client, number).await {
                    eprintln!("session {number}: {error:#}");
                    break;
                }
            }
            connection.abort();
        }
        tokio::time::sleep(PAUSE).await;
    }
}
