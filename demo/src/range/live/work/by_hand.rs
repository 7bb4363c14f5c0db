//! A consumer without the consumer runtime, as an application might write it: it handles several
//! messages concurrently, and releases failed messages for redelivery.

use std::{future::Future, time::Duration};

use anyhow::Result;
use idem_runtime::{Delivery, Message, Settlement, Source, terminated};
use tokio::task::JoinSet;

/// The number of messages that are handled concurrently.
pub const AT_A_TIME: usize = 8;

/// The pause after an error of the broker or of the database.
const PAUSE: Duration = Duration::from_millis(200);

/// Passes every message to `work` until the process receives SIGTERM. A message is acknowledged
/// when `work` succeeds, and redelivered when it fails.
pub async fn consume<F, Fut>(mut source: impl Source, work: F) -> Result<()>
where
    F: Fn(Message) -> Fut,
    Fut: Future<Output = Result<()>> + Send + 'static,
{
    let mut stop = std::pin::pin!(terminated());
    let mut in_progress = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = &mut stop => break,
            Some(done) = in_progress.join_next(), if in_progress.len() >= AT_A_TIME => done?,
            next = source.next(), if in_progress.len() < AT_A_TIME => match next {
                Ok(Some(delivery)) => {
                    let done = work(delivery.message().clone());
                    in_progress.spawn(settle(delivery, done));
                }
                Ok(None) => break,
                Err(error) => {
                    eprintln!("cannot receive from the source: {error}");
                    tokio::time::sleep(PAUSE).await;
                }
            },
        }
        while let Some(done) = in_progress.try_join_next() {
            done?;
        }
    }
    while let Some(done) = in_progress.join_next().await {
        done?;
    }
    Ok(())
}

async fn settle(delivery: Delivery, done: impl Future<Output = Result<()>>) {
    let settlement = match done.await {
        Ok(()) => Settlement::Acknowledge,
        Err(error) => {
            eprintln!("released a message for redelivery: {error:#}");
            // Only the database can fail here, so the message is released and not rejected.
            Settlement::Release { after: PAUSE }
        }
    };
    // A message that is not settled is redelivered by the broker.
    if let Err(error) = delivery.settle(settlement).await {
        eprintln!("cannot settle a message: {error}");
    }
}
