//! Tests of checked handlers: the client looks up the claim before the handler, and records the
//! message after the success of the handler.

use idem_runtime::{Error, Handled, Idem, Message, Processed};

use crate::ground::{Ground, fact, is_new, message};

async fn handler(_: Message) -> Handled {
    Ok(vec![fact()])
}

#[tokio::test]
async fn duplicate_is_skipped_and_success_is_recorded() {
    let ground = Ground::new().await;
    let message = message();
    let idem = Idem::new();
    let processed = idem
        .process_checked(&ground.pool, &message, async |message: Message| {
            assert!(
                !ground.is_claimed(&message).await,
                "the message is claimed only after success"
            );
            Ok(vec![fact()])
        })
        .await;
    assert!(is_new(&processed), "{processed:?}");
    ground.assert_done_once(&message).await;
    let never = async |_: Message| -> Handled { panic!("the handler was called") };
    let again = idem
        .process_checked(&ground.pool, &message, never)
        .await
        .unwrap();
    assert!(matches!(again, Processed::Duplicate { .. }), "{again:?}");
}

#[tokio::test]
async fn failure_is_not_recorded() {
    let ground = Ground::new().await;
    let message = message();
    let failing = async |_: Message| Err("out of stock".into());
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
async fn second_of_two_concurrent_handlers_is_a_duplicate() {
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
