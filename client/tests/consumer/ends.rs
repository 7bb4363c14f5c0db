//! I4: only a requested shutdown ends a consumer without an error.

use std::{
    error::Error as _,
    future::{pending, ready},
};

use futures_util::future::BoxFuture;
use idem_client::{Consumer, Delivery, Error, Receipt, Settlement, Source, TransportError};

use crate::{
    broker::{Broker, Failure},
    ground::{Ground, in_time, message, noting},
    support::source_ended,
};

#[tokio::test]
async fn i4_source_that_ends_ends_the_consumer_with_an_error() {
    let ground = Ground::new().await;
    let broker = Broker::with([message("m", "")]).closed();
    let consumer = Consumer::new(ground.pool.clone(), broker).handle("ends", noting());
    let error = in_time(consumer.run(pending())).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the source ended, and no shutdown was requested"
    );
    assert!(
        error.source().is_none(),
        "it ended without an error of its own"
    );
    assert_eq!(
        source_ended(Err(error)).handled,
        1,
        "all that it had delivered is settled"
    );
    assert_eq!(ground.done().await, ["m"]);
}

/// Delivers what a broker delivers, then fails once and ends, as a fenced member of a Kafka group
/// does.
struct Fatal(Broker, bool);

impl Source for Fatal {
    async fn next(&mut self) -> Result<Option<Delivery>, TransportError> {
        if self.1 {
            return Ok(None);
        }
        match self.0.next().await? {
            Some(delivery) => Ok(Some(delivery)),
            None => {
                self.1 = true;
                Err("this member was fenced".into())
            }
        }
    }
}

#[tokio::test]
async fn i4_fatal_error_of_the_source_is_the_cause_of_the_end() {
    let ground = Ground::new().await;
    let broker = Broker::with([message("m", "")])
        .failing([Failure::Error])
        .closed();
    let consumer =
        Consumer::new(ground.pool.clone(), Fatal(broker, false)).handle("ends", noting());
    let error = in_time(consumer.run(pending())).await.unwrap_err();
    assert_eq!(
        error.source().unwrap().to_string(),
        "this member was fenced"
    );
    assert_eq!(
        source_ended(Err(error)).handled,
        1,
        "an error before a delivery was mended"
    );
}

#[tokio::test]
async fn requested_shutdown_is_no_error() {
    let ground = Ground::new().await;
    let broker = Broker::with([message("m", "")]).closed();
    let consumer = Consumer::new(ground.pool.clone(), broker.clone()).handle("ends", noting());
    let summary = in_time(consumer.run(ready(()))).await.unwrap();
    assert_eq!(summary.handled, 0);
    assert_eq!((broker.unsettled(), broker.waiting()), (0, 1));
}

/// A source whose receipts panic where no message can be blamed, once.
struct Broken(Broker, u32);

impl Source for Broken {
    async fn next(&mut self) -> Result<Option<Delivery>, TransportError> {
        let delivery = self.0.next().await?;
        self.1 += 1;
        Ok(match delivery {
            Some(delivery) if self.1 == 2 => {
                let (message, _) = delivery.into_parts();
                Some(Delivery::new(message, Panics))
            }
            other => other,
        })
    }
}

struct Panics;

impl Receipt for Panics {
    fn settle(self: Box<Self>, _: Settlement) -> BoxFuture<'static, Result<(), TransportError>> {
        Box::pin(ready(Ok(())))
    }

    fn is_in_charge(&self) -> bool {
        panic!("a bug in a receipt")
    }
}

#[tokio::test]
async fn i4_worker_that_panics_ends_the_consumer_with_an_error() {
    let ground = Ground::new().await;
    let broker = Broker::with((0..40).map(|n| message(format!("m-{n}"), "")));
    let source = Broken(broker.clone(), 0);
    let consumer = Consumer::new(ground.pool.clone(), source)
        .handle("ends", noting())
        .ordered_by_key(true);
    let error = in_time(consumer.run(pending())).await.unwrap_err();
    assert!(
        matches!(&error, Error::WorkerPanicked(text) if text == "a bug in a receipt"),
        "{error:?}"
    );
    assert_eq!(
        broker.unsettled(),
        0,
        "what was held is settled or given back"
    );
    let acknowledged = broker.told().acknowledged.len();
    assert_eq!(ground.done().await.len(), acknowledged);
}
