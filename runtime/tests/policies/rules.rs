//! Tests of policies of destinations, on a real server.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use idem_client::{Destination, RecordedEffect};
use idem_runtime::{
    Error, HandlerError, Idem, Message, Policies, Processed, Settlement,
    policy::{IdStrategy, OnDuplicate},
};

use crate::fixtures::{Fixture, is_new, message, with};

fn of(destination: &str) -> Message {
    message("m").with_destination(Destination::new(destination).unwrap())
}

#[tokio::test]
async fn each_destination_has_its_own_policy() {
    let fixture = Fixture::new().await;
    let idem = with(
        Policies::default()
            .prefix("orders.", |policy| policy.id = IdStrategy::CorrelationId)
            .destination("orders.plain", |policy| policy.id = IdStrategy::MessageId),
    );
    assert!(is_new(&fixture.process(&idem, &of("billing")).await));
    assert!(is_new(&fixture.process(&idem, &of("orders.plain")).await));
    let error = fixture.process(&idem, &of("orders.other")).await;
    assert!(matches!(error, Err(Error::MissingId { .. })), "{error:?}");
    assert!(is_new(
        &fixture
            .process(&idem, &of("orders.other").with_correlation_id("c"))
            .await
    ));
}

#[tokio::test]
async fn duplicate_callback_gets_the_recorded_effects() {
    let fixture = Fixture::new().await;
    let calls = Arc::new(Mutex::new(Vec::<(Message, Vec<RecordedEffect>)>::new()));
    let (recorder, fails) = (Arc::clone(&calls), Arc::new(AtomicBool::new(false)));
    let is_failing = Arc::clone(&fails);
    let idem = Idem::builder()
        .policies(Policies::default().destination("with-effects", |policy| {
            policy.on_duplicate = OnDuplicate::Effects
        }))
        .on_duplicate(move |message, effects| {
            let (recorder, is_failing) = (Arc::clone(&recorder), Arc::clone(&is_failing));
            async move {
                if is_failing.load(Ordering::Relaxed) {
                    return Err(HandlerError::from("callback failed"));
                }
                recorder.lock().unwrap().push((message, effects));
                Ok(())
            }
        })
        .build()
        .unwrap();
    let Ok(Processed::New { effects: ids }) = fixture.process(&idem, &of("with-effects")).await
    else {
        panic!("expected a new message");
    };
    assert!(calls.lock().unwrap().is_empty());

    let again = fixture.process(&idem, &of("with-effects")).await.unwrap();
    let Processed::Duplicate { effects } = again else {
        panic!("{again:?}");
    };
    assert!(effects.iter().map(|effect| effect.message_id).eq(ids));
    {
        let calls = calls.lock().unwrap();
        let [(message, passed)] = &calls[..] else {
            panic!("{calls:?}");
        };
        assert_eq!((message.message_id(), passed), (Some("m"), &effects));
    }

    // If the callback fails, the message is not acknowledged.
    fails.store(true, Ordering::Relaxed);
    let failed = fixture
        .process(&idem, &of("with-effects"))
        .await
        .unwrap_err();
    assert_eq!(
        failed.settlement(),
        Settlement::Retry {
            after: Duration::ZERO
        }
    );

    // The callback is not called for a destination without this policy.
    assert!(is_new(
        &fixture.process(&idem, &of("without-effects")).await
    ));
    let duplicate = fixture
        .process(&idem, &of("without-effects"))
        .await
        .unwrap();
    assert_eq!(
        duplicate,
        Processed::Duplicate {
            effects: Vec::new()
        }
    );
    assert_eq!(calls.lock().unwrap().len(), 1);
}
