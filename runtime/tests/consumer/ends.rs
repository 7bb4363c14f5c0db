//! I4: only a requested shutdown ends a consumer without an error.

use std::{
    error::Error as _,
    future::{pending, ready},
};

use futures_util::future::BoxFuture;
use idem_runtime::{
    Consumer, Delivery, Error, Receipt, Settlement, Source, transport::TransportError,
};
use idem_testkit::{
    broker::{Broker, Failure},
    source_ended,
};

use crate::fixtures::{Fixture, in_time, message, noting};

/// I4: when the source ends without a requested shutdown, the consumer returns an error after it
/// has settled its messages.
#[tokio::test]
async fn i4_end_of_the_source_is_an_error() {
    let fixture = Fixture::new().await;
    let broker = Broker::with([message("m", "")]).closed();
    let consumer = Consumer::new(fixture.pool.clone(), broker).handle("ends", noting());
    let error = in_time(consumer.run(pending())).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the source ended without a requested shutdown"
    );
    assert!(
        error.source().is_none(),
        "the source did not return an error before it ended"
    );
    assert_eq!(
        source_ended(Err(error)).handled,
        1,
        "a delivered message is not settled"
    );
    assert_eq!(fixture.done().await, ["m"]);
}

/// A source that delivers the messages of a broker, then fails once and ends, as a fenced member of
/// a Kafka group does.
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

/// I4: if a source fails and then ends, its last error is the cause of the error of the consumer.
#[tokio::test]
async fn i4_fatal_error_of_the_source_is_the_cause() {
    let fixture = Fixture::new().await;
    let broker = Broker::with([message("m", "")])
        .failing([Failure::Error])
        .closed();
    let consumer =
        Consumer::new(fixture.pool.clone(), Fatal(broker, false)).handle("ends", noting());
    let error = in_time(consumer.run(pending())).await.unwrap_err();
    assert_eq!(
        error.source().unwrap().to_string(),
        "this member was fenced"
    );
    assert_eq!(
        source_ended(Err(error)).handled,
        1,
        "the message was not handled after the first error"
    );
}

#[tokio::test]
async fn requested_shutdown_returns_ok() {
    let fixture = Fixture::new().await;
    let broker = Broker::with([message("m", "")]).closed();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone()).handle("ends", noting());
    let summary = in_time(consumer.run(ready(()))).await.unwrap();
    assert_eq!(summary.handled, 0);
    assert_eq!((broker.unsettled(), broker.waiting()), (0, 1));
}

/// A source whose second delivery has a broken receipt. The receipt panics outside of any handler,
/// so the panic is not a failure of a message.
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

/// I4: after a panic outside a handler, the consumer settles or releases its messages and returns
/// an error.
#[tokio::test]
async fn i4_panic_of_a_worker_ends_the_consumer_with_an_error() {
    let fixture = Fixture::new().await;
    let broker = Broker::with((0..40).map(|n| message(format!("m-{n}"), "")));
    let source = Broken(broker.clone(), 0);
    let consumer = Consumer::new(fixture.pool.clone(), source)
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
        "a held message was neither settled nor released"
    );
    let acknowledged = broker.told().acknowledged.len();
    assert_eq!(fixture.done().await.len(), acknowledged);
}
