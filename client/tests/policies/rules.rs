//! Policies of destinations, as far as a server has a part in them.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use idem_client::{
    Destination, Error, HandlerError, Idem, Message, OnDuplicate, Policies, Processed,
    RecordedEffect, Settlement,
};

use crate::ground::{Ground, is_duplicate, is_new, message};

fn of(destination: &str) -> Message {
    message("m").with_destination(Destination::new(destination).unwrap())
}

#[tokio::test]
async fn each_destination_has_its_own_policy() {
    let ground = Ground::new().await;
    let idem = crate::ground::idem(
        "[destinations.'orders.*']\nid = 'correlation-id'\n\
         [destinations.'orders.plain']\nid = 'message-id'",
    );
    assert!(is_new(&ground.process(&idem, &of("billing")).await));
    assert!(is_new(&ground.process(&idem, &of("orders.plain")).await));
    let refused = ground.process(&idem, &of("orders.other")).await;
    assert!(
        matches!(refused, Err(Error::MissingId { .. })),
        "{refused:?}"
    );
    assert!(is_new(
        &ground
            .process(&idem, &of("orders.other").with_correlation_id("c"))
            .await
    ));
}

#[tokio::test]
async fn retentions_of_names_reach_the_database_when_it_is_told() {
    let ground = Ground::new().await;
    let idem = crate::ground::idem(
        "[destinations.'orders.*']\nretention = '30 days'\n\
         [destinations.'orders.reserve']\nwait = true\n\
         [destinations.telemetry]\nretention = '30 minutes'\n\
         [destinations.plain]\nwait = true",
    );
    assert!(is_new(&ground.process(&idem, &of("orders.reserve")).await));
    let configured = idem.configure(&ground.client).await.unwrap();
    assert_eq!(
        configured
            .iter()
            .map(Destination::as_str)
            .collect::<Vec<_>>(),
        ["orders.reserve", "telemetry"]
    );
    let rows = ground
        .client
        .query(
            "SELECT d.name, r.name, d.retention::text FROM idem.destination d JOIN idem.ring r ON r.id = d.ring ORDER BY 1",
            &[],
        )
        .await
        .unwrap();
    let rows: Vec<(String, String, String)> = rows
        .iter()
        .map(|row| (row.get(0), row.get(1), row.get(2)))
        .collect();
    let row = |name: &str, ring: &str, retention: &str| {
        (name.to_owned(), ring.to_owned(), retention.to_owned())
    };
    assert_eq!(
        rows,
        [
            row("orders.reserve", "long", "720:00:00"),
            row("telemetry", "short", "00:30:00")
        ]
    );
    // Nothing is forgotten by that.
    assert!(is_duplicate(
        &ground.process(&idem, &of("orders.reserve")).await
    ));
}

#[tokio::test]
async fn more_than_the_rings_keep_is_said_when_the_database_is_told() {
    let ground = Ground::new().await;
    let idem = crate::ground::idem("[destinations.tests]\nretention = '400 days'");
    let refused = idem
        .configure(&ground.client)
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("no ring keeps claims for"), "{refused}");
}

#[tokio::test]
async fn a_duplicate_is_handed_to_the_callback_with_what_was_recorded() {
    let ground = Ground::new().await;
    let heard = Arc::new(Mutex::new(Vec::<(Message, Vec<RecordedEffect>)>::new()));
    let (ears, fails) = (Arc::clone(&heard), Arc::new(AtomicBool::new(false)));
    let is_failing = Arc::clone(&fails);
    let idem = Idem::builder()
        .policies(
            Policies::default()
                .destination("answered", |rule| rule.on_duplicate(OnDuplicate::Effects)),
        )
        .on_duplicate(move |message, effects| {
            let (ears, is_failing) = (Arc::clone(&ears), Arc::clone(&is_failing));
            async move {
                if is_failing.load(Ordering::Relaxed) {
                    return Err(HandlerError::from("nobody listens"));
                }
                ears.lock().unwrap().push((message, effects));
                Ok(())
            }
        })
        .build()
        .unwrap();
    let Ok(Processed::New { effects: ids }) = ground.process(&idem, &of("answered")).await else {
        panic!("a new message");
    };
    assert!(heard.lock().unwrap().is_empty());

    let again = ground.process(&idem, &of("answered")).await.unwrap();
    let Processed::Duplicate { effects } = again else {
        panic!("{again:?}");
    };
    assert!(effects.iter().map(|effect| effect.message_id).eq(ids));
    {
        let heard = heard.lock().unwrap();
        let [(message, told)] = &heard[..] else {
            panic!("{heard:?}");
        };
        assert_eq!((message.message_id(), told), (Some("m"), &effects));
    }

    // A callback that fails is not acknowledged.
    fails.store(true, Ordering::Relaxed);
    let failed = ground.process(&idem, &of("answered")).await.unwrap_err();
    assert_eq!(
        failed.settlement(),
        Settlement::Retry {
            after: Duration::ZERO
        }
    );

    // Where the policy does not ask, nobody is called.
    assert!(is_new(&ground.process(&idem, &of("silent")).await));
    let silent = ground.process(&idem, &of("silent")).await.unwrap();
    assert_eq!(
        silent,
        Processed::Duplicate {
            effects: Vec::new()
        }
    );
    assert_eq!(heard.lock().unwrap().len(), 1);
}
