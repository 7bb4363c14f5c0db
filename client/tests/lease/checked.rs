//! Check before, record only after success.

use idem_client::{Error, Handled, Idem, Message, Processed};

use crate::ground::{Ground, fact, is_new, message};

async fn handler(_: Message) -> Handled {
    Ok(vec![fact()])
}

#[tokio::test]
async fn what_is_known_is_skipped_and_what_succeeded_is_recorded() {
    let ground = Ground::new().await;
    let message = message();
    let idem = Idem::new();
    let processed = idem
        .process_checked(&ground.pool, &message, async |message: Message| {
            assert!(!ground.is_claimed(&message).await, "only after success");
            Ok(vec![fact()])
        })
        .await;
    assert!(is_new(&processed), "{processed:?}");
    ground.assert_done_once(&message).await;
    let never = async |_: Message| -> Handled { panic!("nobody calls it") };
    let again = idem
        .process_checked(&ground.pool, &message, never)
        .await
        .unwrap();
    assert!(matches!(again, Processed::Duplicate { .. }), "{again:?}");
}

#[tokio::test]
async fn what_failed_is_not_recorded() {
    let ground = Ground::new().await;
    let message = message();
    let failing = async |_: Message| Err("a bad day".into());
    let error = Idem::new()
        .process_checked(&ground.pool, &message, failing)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Handler(_)), "{error:?}");
    ground.assert_undone(&message).await;
    assert!(is_new(
        &Idem::new()
            .process_checked(&ground.pool, &message, handler)
            .await
    ));
    ground.assert_done_once(&message).await;
}

#[tokio::test]
async fn of_two_at_the_same_time_one_is_recorded_and_the_other_is_told() {
    let ground = Ground::new().await;
    let message = message();
    let idem = Idem::new();
    let second = idem
        .process_checked(&ground.pool, &message, async |message: Message| {
            let first = idem.process_checked(&ground.pool, &message, handler).await;
            assert!(is_new(&first), "{first:?}");
            Ok(vec![fact()])
        })
        .await
        .unwrap();
    assert!(matches!(second, Processed::Duplicate { .. }), "{second:?}");
    ground.assert_done_once(&message).await;
}
