//! Tests of filters, which have hooks before and after the handler.

use std::sync::{Arc, Mutex};

use futures_util::{FutureExt, future::BoxFuture};
use idem_client::Effect;
use idem_runtime::{
    HandlerError, Idem, Message, Processed, Settlement,
    filter::{After, Before, Filter},
};

use crate::fixtures::{Fixture, is_duplicate, is_new, message, note};

/// A filter that consists of two functions.
struct Hooks<B, A>(B, A);

impl<B, A> Filter for Hooks<B, A>
where
    B: Fn(&Message) -> Before + Send + Sync + 'static,
    A: Fn(&Message, &[Effect]) -> After + Send + Sync + 'static,
{
    fn before_consuming<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Before> {
        async { (self.0)(message) }.boxed()
    }

    fn on_consumed<'a>(
        &'a self,
        message: &'a Message,
        effects: &'a [Effect],
    ) -> BoxFuture<'a, After> {
        async { (self.1)(message, effects) }.boxed()
    }
}

fn before(hook: impl Fn(&Message) -> Before + Send + Sync + 'static) -> impl Filter {
    Hooks(hook, |_: &Message, _: &[Effect]| After::Continue)
}

fn after(hook: impl Fn(&Message, &[Effect]) -> After + Send + Sync + 'static) -> impl Filter {
    Hooks(|_: &Message| Before::Continue, hook)
}

fn effect(topic: &str) -> Effect {
    Effect::json(topic, &1).unwrap()
}

/// A filter that overrides no hook.
struct Nothing;

impl Filter for Nothing {}

#[tokio::test]
async fn filter_without_hooks_changes_nothing() {
    let fixture = Fixture::new().await;
    let idem = Idem::builder().filter(Nothing).build().unwrap();
    assert!(is_new(&fixture.process(&idem, &message("a")).await));
    assert!(is_duplicate(&fixture.process(&idem, &message("a")).await));
    assert_eq!(fixture.outbox().await.len(), 1);
}

#[tokio::test]
async fn filter_can_stop_a_message_before_its_claim() {
    let fixture = Fixture::new().await;
    let idem = Idem::builder()
        .filter(before(|message| match message.header("poison") {
            Some(reason) => Before::Stop(Settlement::reject(reason)),
            None => Before::Continue,
        }))
        .build()
        .unwrap();
    let stopped = fixture
        .process(&idem, &message("a").with_header("poison", "too large"))
        .await
        .unwrap();
    assert!(matches!(stopped, Processed::Stopped { .. }), "{stopped:?}");
    assert_eq!(stopped.settlement(), Settlement::reject("too large"));
    assert_eq!((fixture.calls(), fixture.claims().await), (0, 0));
    // The stopped message was not claimed, so it is new.
    assert!(is_new(&fixture.process(&idem, &message("a")).await));
}

#[tokio::test]
async fn filter_can_replace_the_claimed_and_handled_message() {
    let fixture = Fixture::new().await;
    let idem = Idem::builder()
        .filter(before(|message| {
            let id = message.header("order").unwrap_or_default();
            Before::Replace(Message::new("replaced", "other").with_message_id(id))
        }))
        .build()
        .unwrap();
    assert!(is_new(
        &fixture
            .process(&idem, &message("a").with_header("order", "7"))
            .await
    ));
    assert!(is_duplicate(
        &fixture
            .process(&idem, &message("b").with_header("order", "7"))
            .await
    ));
    let fact = fixture
        .client
        .query_one("SELECT topic, id, payload FROM fact", &[])
        .await
        .unwrap();
    let fact: (&str, &str, &str) = (fact.get(0), fact.get(1), fact.get(2));
    assert_eq!(fact, ("replaced", "7", "other"));
    let claim = fixture
        .client
        .query_one("SELECT destination, id FROM idem.inbox", &[])
        .await
        .unwrap();
    assert_eq!(
        (claim.get::<_, &str>(0), claim.get::<_, &str>(1)),
        ("replaced", "7")
    );
}

#[tokio::test]
async fn filter_can_replace_the_recorded_effects() {
    let fixture = Fixture::new().await;
    let idem = Idem::builder()
        .filter(after(|_, effects| {
            let mut more = effects.to_vec();
            more.push(effect("audit"));
            After::Replace(more)
        }))
        .build()
        .unwrap();
    let Ok(Processed::New { effects }) = fixture.process(&idem, &message("a")).await else {
        panic!("expected a new message");
    };
    assert_eq!(effects.len(), 2);
    let topics: Vec<String> = fixture
        .outbox()
        .await
        .into_iter()
        .map(|(topic, _)| topic)
        .collect();
    assert_eq!(topics, ["facts", "audit"]);
}

#[tokio::test]
async fn stop_after_the_handler_rolls_back() {
    let fixture = Fixture::new().await;
    let idem = Idem::builder()
        .filter(after(|_, _| {
            After::Stop(HandlerError::terminal("the balance is negative"))
        }))
        .build()
        .unwrap();
    let stopped = fixture.process(&idem, &message("a")).await.unwrap_err();
    assert!(
        stopped.to_string().contains("the balance is negative"),
        "{stopped}"
    );
    assert!(matches!(stopped.settlement(), Settlement::Reject { .. }));
    assert_eq!(fixture.calls(), 1);
    assert_eq!((fixture.facts().await, fixture.claims().await), (0, 0));
    assert!(is_new(&fixture.process(&Idem::new(), &message("a")).await));
}

#[tokio::test]
async fn filters_run_in_order_and_in_reverse_after_the_handler() {
    let fixture = Fixture::new().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let numbered = |n: usize| {
        let (first, second) = (Arc::clone(&seen), Arc::clone(&seen));
        Hooks(
            move |message: &Message| {
                first
                    .lock()
                    .unwrap()
                    .push(format!("before {n}: {}", message.payload().len()));
                let longer = format!("{}+", String::from_utf8_lossy(message.payload()));
                Before::Replace(
                    Message::new("tests", longer).with_message_id(message.message_id().unwrap()),
                )
            },
            move |message: &Message, effects: &[Effect]| {
                second.lock().unwrap().push(format!(
                    "after {n}: {} {}",
                    message.payload().len(),
                    effects.len()
                ));
                After::Replace([effects, &[effect("more")]].concat())
            },
        )
    };
    let idem = Idem::builder()
        .filter(numbered(1))
        .filter(numbered(2))
        .build()
        .unwrap();
    assert!(is_new(&fixture.process(&idem, &message("a")).await));
    let first: Vec<String> = std::mem::take(&mut *seen.lock().unwrap());
    assert_eq!(
        first,
        ["before 1: 2", "before 2: 3", "after 2: 4 1", "after 1: 4 2"]
    );
    // For a duplicate, only the hooks before the handler run.
    assert!(is_duplicate(&fixture.process(&idem, &message("a")).await));
    assert_eq!(*seen.lock().unwrap(), ["before 1: 2", "before 2: 3"]);
}

#[tokio::test]
async fn failed_handler_skips_the_hook_on_consumed() {
    let fixture = Fixture::new().await;
    let idem = Idem::builder()
        .filter(after(|_, _| After::Replace(vec![])))
        .build()
        .unwrap();
    let failed = idem
        .process(&fixture.pool, &message("a"), async |tx, message| {
            note(tx, message).await?;
            Err("temporary failure".into())
        })
        .await;
    assert!(failed.is_err());
    assert_eq!(fixture.facts().await, 0);
}
