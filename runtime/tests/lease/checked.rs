//! Tests of checked handlers: the client looks up the claim before the handler, and records the
//! message after the success of the handler.

use idem_runtime::{
    Error, Handled, Idem, Message, Processed, Settlement,
    policy::{OnDuplicate, Policy, Style},
};

use crate::fixtures::{Fixture, fact, idem, is_new, message, work};

async fn handler(_: Message) -> Handled {
    Ok(vec![fact()])
}

#[tokio::test]
async fn duplicate_is_skipped_and_success_is_recorded() {
    let fixture = Fixture::new().await;
    let message = message();
    let idem = Idem::new();
    let processed = idem
        .process_checked(&fixture.pool, &message, async |message: Message| {
            assert!(
                !fixture.is_claimed(&message).await,
                "the message is claimed only after success"
            );
            Ok(vec![fact()])
        })
        .await;
    assert!(is_new(&processed), "{processed:?}");
    fixture.assert_done_once(&message).await;
    let never = async |_: Message| -> Handled { panic!("the handler was called") };
    let again = idem
        .process_checked(&fixture.pool, &message, never)
        .await
        .unwrap();
    assert!(matches!(again, Processed::Duplicate { .. }), "{again:?}");
}

/// Goal: a message that a handler in a transaction has claimed is a duplicate. With the policy
/// `effects`, the effects that the first handler recorded are returned.
#[tokio::test]
async fn message_claimed_in_a_transaction_is_skipped() {
    let fixture = Fixture::new().await;
    let never = async |_: Message| -> Handled { panic!("the handler was called") };
    for style in [Style::Eager, Style::Reactive] {
        let message = message();
        let claiming = idem(|policy| policy.style = style);
        assert!(is_new(
            &claiming.process(&fixture.pool, &message, work).await
        ));
        for (on_duplicate, has_effects) in [
            (OnDuplicate::Acknowledge, false),
            (OnDuplicate::Effects, true),
        ] {
            let again = idem(|policy| {
                policy.style = style;
                policy.on_duplicate = on_duplicate;
            })
            .process_checked(&fixture.pool, &message, never)
            .await
            .unwrap();
            let effects = match has_effects {
                true => fixture.effects(&message).await,
                false => Vec::new(),
            };
            assert_eq!(again, Processed::Duplicate { effects }, "{style:?}");
        }
        fixture.assert_done_once(&message).await;
    }
}

/// I4: checked handlers do not support policies that compare payloads or that reject expired
/// messages. Such a policy is an error. If it were ignored, a message with the id of another
/// message and a different payload would be acknowledged as a duplicate.
#[tokio::test]
async fn i4_policy_that_the_check_ignores_is_an_error() {
    let fixture = Fixture::new().await;
    let rules: [fn(&mut Policy); 2] = [
        |policy| policy.fingerprint = true,
        |policy| policy.expire = true,
    ];
    let never = async |_: Message| -> Handled { panic!("the handler was called") };
    for rule in rules {
        let message = message();
        let error = idem(rule)
            .process_checked(&fixture.pool, &message, never)
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Policy(_)), "{error:?}");
        assert_eq!(error.settlement(), Settlement::RELEASE);
        fixture.assert_undone(&message).await;
    }
}

#[tokio::test]
async fn failure_is_not_recorded() {
    let fixture = Fixture::new().await;
    let message = message();
    let failing = async |_: Message| Err("out of stock".into());
    let error = Idem::new()
        .process_checked(&fixture.pool, &message, failing)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Handler(_)), "{error:?}");
    fixture.assert_undone(&message).await;
    assert!(is_new(
        &Idem::new()
            .process_checked(&fixture.pool, &message, handler)
            .await
    ));
    fixture.assert_done_once(&message).await;
}

#[tokio::test]
async fn second_of_two_concurrent_handlers_is_a_duplicate() {
    let fixture = Fixture::new().await;
    let message = message();
    let idem = Idem::new();
    let second = idem
        .process_checked(&fixture.pool, &message, async |message: Message| {
            let first = idem.process_checked(&fixture.pool, &message, handler).await;
            assert!(is_new(&first), "{first:?}");
            Ok(vec![fact()])
        })
        .await
        .unwrap();
    assert!(matches!(second, Processed::Duplicate { .. }), "{second:?}");
    fixture.assert_done_once(&message).await;
}
