//! A consumer as people write it without a runtime: some messages at a time, and what fails comes
//! again.

use std::{future::Future, time::Duration};

use anyhow::Result;
use idem_client::{Delivery, Message, Settlement, Source, terminated};
use tokio::task::JoinSet;

/// Messages at a time.
pub const AT_A_TIME: usize = 8;

/// How long to let a broker or a database be that is away.
const PAUSE: Duration = Duration::from_millis(200);

/// Hands every message to `work` until the process is told to stop. What `work` has done is
/// acknowledged, and what it has failed at comes again.
pub async fn consume<F, Fut>(mut source: impl Source, work: F) -> Result<()>
where
    F: Fn(Message) -> Fut,
    Fut: Future<Output = Result<()>> + Send + 'static,
{
    let mut stop = std::pin::pin!(terminated());
    let mut at_work = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = &mut stop => break,
            Some(done) = at_work.join_next(), if at_work.len() >= AT_A_TIME => done?,
            next = source.next(), if at_work.len() < AT_A_TIME => match next {
                Ok(Some(delivery)) => {
                    let done = work(delivery.message().clone());
                    at_work.spawn(settle(delivery, done));
                }
                Ok(None) => break,
                Err(error) => {
                    eprintln!("the source: {error}");
                    tokio::time::sleep(PAUSE).await;
                }
            },
        }
        while let Some(done) = at_work.try_join_next() {
            done?;
        }
    }
    while let Some(done) = at_work.join_next().await {
        done?;
    }
    Ok(())
}

async fn settle(delivery: Delivery, done: impl Future<Output = Result<()>>) {
    let settlement = match done.await {
        Ok(()) => Settlement::Acknowledge,
        Err(error) => {
            eprintln!("a message comes again: {error:#}");
            // Here only the database fails.
            Settlement::Release { after: PAUSE }
        }
    };
    // A broker that was not told delivers again.
    if let Err(error) = delivery.settle(settlement).await {
        eprintln!("not settled: {error}");
    }
}
