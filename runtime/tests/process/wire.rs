//! Tests of the number of round trips between the client and the server. A proxy counts them.

use deadpool_postgres::Pool;
use idem_runtime::{
    Handled, Idem, Message, Processed, Tx,
    policy::{Store, Style},
};
use idem_testkit::proxy::Proxy;

use crate::fixtures::{Fixture, fact, idem, insert, message, preparing, preparing_idem};

/// A handler that executes `statements` statements and returns `effects` effects.
async fn handle(tx: Tx, message: Message, statements: usize, effects: usize) -> Handled {
    for _ in 0..statements {
        insert(&tx, &message).await?;
    }
    Ok((0..effects).map(|_| fact()).collect())
}

async fn bare_round_trips(proxy: &Proxy, pool: &Pool, statements: usize) -> usize {
    let mut client = pool.get().await.unwrap();
    let before = proxy.turns();
    let tx = client.transaction().await.unwrap();
    for _ in 0..statements {
        insert(tx.client(), &message()).await.unwrap();
    }
    tx.commit().await.unwrap();
    proxy.turns() - before
}

async fn round_trips(
    proxy: &Proxy,
    pool: &Pool,
    idem: &Idem,
    statements: usize,
    effects: usize,
) -> usize {
    drop(pool.get().await.unwrap());
    let before = proxy.turns();
    let processed = idem
        .process(pool, &message(), |tx, message| {
            handle(tx, message, statements, effects)
        })
        .await
        .unwrap();
    assert!(matches!(processed, Processed::New { effects: ids } if ids.len() == effects));
    proxy.turns() - before
}

#[tokio::test]
async fn protected_message_takes_the_round_trips_of_its_transaction() {
    let fixture = Fixture::new().await;
    let proxy = Proxy::to(&fixture.database).await;
    let pool = proxy.pool(1);
    let prepared = Idem::builder().prepared_statements(true).build().unwrap();
    // Process one message before the measurement, because the first use of each statement prepares
    // it.
    round_trips(&proxy, &pool, &prepared, 0, 1).await;
    for statements in [0, 1, 4] {
        let bare = bare_round_trips(&proxy, &pool, statements).await;
        assert_eq!(bare, statements + 2);
        for effects in [0, 1, 3] {
            assert_eq!(
                round_trips(&proxy, &pool, &Idem::new(), statements, effects).await,
                bare
            );
            assert_eq!(
                round_trips(&proxy, &pool, &prepared, statements, effects).await,
                bare
            );
            let unclaimed = idem(|policy| policy.store = Store::Memory);
            assert_eq!(
                round_trips(&proxy, &pool, &unclaimed, statements, effects).await,
                bare
            );
            let reactive = idem(|policy| policy.style = Style::Reactive);
            assert_eq!(
                round_trips(&proxy, &pool, &reactive, statements, effects).await,
                bare + 1
            );
        }
    }
}

#[tokio::test]
async fn batch_takes_round_trips_of_one_message_and_its_handlers() {
    let fixture = Fixture::new().await;
    let proxy = Proxy::to(&fixture.database).await;
    for &prepared in preparing() {
        let idem = preparing_idem(prepared, |_| {});
        let pool = proxy.pool(1);
        // The statements are prepared at their first use on the connection.
        let first = [message(), message()];
        let results = idem
            .process_batch(&pool, &first, |tx, message| handle(tx, message, 1, 1))
            .await;
        assert!(results.iter().all(Result::is_ok), "{results:?}");

        let messages: Vec<_> = (0..40).map(|_| message()).collect();
        let before = proxy.turns();
        let results = idem
            .process_batch(&pool, &messages, |tx, message| handle(tx, message, 1, 1))
            .await;
        assert_eq!(
            proxy.turns() - before,
            messages.len() + 2,
            "prepared: {prepared}"
        );
        assert!(
            results.iter().all(
                |result| matches!(result, Ok(Processed::New { effects }) if effects.len() == 1)
            )
        );
    }
}
