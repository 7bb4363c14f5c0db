//! Filters that replace a message of the inbox.

use std::sync::{Arc, Mutex};

use futures_util::{FutureExt, future::BoxFuture};
use idem_client::{Destination, is_claimed};
use idem_runtime::{
    Idem, Message,
    filter::{Before, Filter},
    lease::LeaseContext,
};

use crate::fixtures::{Fixture, Running, id_of, noting};

/// Replaces each message by a message of this topic, with another id.
struct Replacing {
    topic: String,
    id: fn(&str) -> String,
}

impl Filter for Replacing {
    fn before_consuming<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Before> {
        let other = Message::new(&self.topic, message.payload().clone())
            .with_message_id((self.id)(message.message_id().unwrap()));
        async { Before::Replace(other) }.boxed()
    }
}

fn replacing(topic: &str, id: fn(&str) -> String) -> Idem {
    let topic = topic.into();
    let filter = Replacing { topic, id };
    Idem::builder().filter(filter).build().unwrap()
}

/// I4: a filter redirects messages to another destination, which has already processed a message
/// with the same id. The id of the new message is claimed there, so the message is handled.
#[tokio::test]
async fn i4_redirected_message_has_no_id_of_its_inbox() {
    let fixture = Fixture::new().await;
    let other = Destination::new("tests.other").unwrap();
    let claim = "BEGIN; SELECT idem_try_claim('taken', 'tests.other'); COMMIT";
    fixture.client.batch_execute(claim).await.unwrap();
    for id in ["taken", "free"] {
        fixture.receive(id, "").await;
    }
    let consumer = fixture
        .consumer(&fixture.db.pool(4))
        .idem(replacing(other.as_str(), |id| format!("from-inbox-{id}")))
        .handle(fixture.to.as_str(), noting());
    let consumer = Running::start(consumer);
    fixture.until_empty().await;
    let summary = consumer.stop().await;
    assert_eq!((summary.handled, summary.duplicates), (2, 0));
    let mut done = fixture.done().await;
    done.sort();
    assert_eq!(done, ["from-inbox-free", "from-inbox-taken"]);
    for (destination, id, expected) in [
        (&other, "from-inbox-taken", true),
        (&other, "from-inbox-free", true),
        (&other, "free", false),
        (&fixture.to, "taken", true),
        (&fixture.to, "free", true),
    ] {
        let claimed = is_claimed(&fixture.client, &id_of(id), destination).await;
        assert_eq!(claimed.unwrap(), expected, "{id} of {destination}");
    }
}

/// I1: a filter that keeps the destination does not change the identity of a message. Two messages
/// with the same new id are both handled, each once.
#[tokio::test]
async fn i1_replaced_message_keeps_the_id_of_its_inbox() {
    let fixture = Fixture::new().await;
    for id in ["first", "second"] {
        fixture.receive(id, "").await;
    }
    let consumer = fixture
        .consumer(&fixture.db.pool(4))
        .idem(replacing(fixture.to.as_str(), |_| "same".into()))
        .handle(fixture.to.as_str(), noting());
    let consumer = Running::start(consumer);
    fixture.until_empty().await;
    let summary = consumer.stop().await;
    assert_eq!((summary.handled, summary.duplicates), (2, 0));
    assert_eq!(fixture.done().await, ["same", "same"]);
    for (id, expected) in [("first", true), ("second", true), ("same", false)] {
        let claimed = is_claimed(&fixture.client, &id_of(id), &fixture.to).await;
        assert_eq!(claimed.unwrap(), expected, "{id}");
    }
}

/// Goal: a replaced message has the attempts and the last error of the inbox.
#[tokio::test]
async fn replaced_message_keeps_attempts_and_last_error() {
    let fixture = Fixture::new().await;
    fixture.receive("m", "").await;
    let seen = Arc::new(Mutex::new(Vec::<(i32, Option<String>)>::new()));
    let noted = Arc::clone(&seen);
    let handler = move |work: LeaseContext, message: Message| {
        let noted = Arc::clone(&noted);
        async move {
            assert_eq!(message.last_error(), work.last_error());
            let attempt = (work.attempt(), work.last_error().map(Into::into));
            noted.lock().unwrap().push(attempt);
            match work.attempt() {
                1 => Err("out of stock".into()),
                _ => Ok(vec![]),
            }
        }
    };
    let consumer = fixture
        .consumer(&fixture.db.pool(4))
        .idem(replacing(fixture.to.as_str(), |_| "other".into()))
        .handle_leased(fixture.to.as_str(), handler);
    let consumer = Running::start(consumer);
    fixture.until_empty().await;
    consumer.stop().await;
    let seen = seen.lock().unwrap().clone();
    let [(1, None), (2, Some(error))] = &seen[..] else {
        panic!("{seen:?}");
    };
    assert!(error.contains("out of stock"), "{error}");
}
