//! The extractors of axum.

use axum::{Router, http::StatusCode, routing::post};
use idem_http::{InTransaction, UnderLease};
use tokio_postgres::types::Type;

use crate::fixtures::{Fixture, Mode, Server, ask, layer};

/// Inserts one row in the transaction of the request.
async fn insert(InTransaction(tx): InTransaction, text: String) -> StatusCode {
    let sql = "INSERT INTO work VALUES ($1)";
    tx.execute_typed(sql, &[(&text, Type::TEXT)]).await.unwrap();
    StatusCode::CREATED
}

async fn optional(tx: Option<InTransaction>, lease: Option<UnderLease>) -> String {
    format!("transaction {}, lease {}", tx.is_some(), lease.is_some())
}

async fn twice(first: InTransaction, _second: InTransaction) -> StatusCode {
    drop(first);
    StatusCode::CREATED
}

async fn call(UnderLease(work): UnderLease) -> Result<String, StatusCode> {
    let call = async |key| Ok::<String, std::io::Error>(key);
    let called = work.calls().once("call", &1, call).await;
    called.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}

fn router() -> Router {
    Router::new()
        .route("/insert", post(insert))
        .route("/optional", post(optional))
        .route("/twice", post(twice))
        .route("/call", post(call))
}

/// Goal: the writes through the extractor commit with the claim of the key.
#[tokio::test]
async fn extracted_transaction_commits_with_the_response() {
    let fixture = Fixture::new(Mode::Transaction).await;
    let layer = layer(Mode::Transaction, fixture.app.pool.clone());
    let server = Server::start(router().layer(layer)).await;
    let request = ask("insert").path("/insert");
    let first = fixture.send_to(server.address, &request).await;
    assert_eq!(first.status, StatusCode::CREATED);
    let again = fixture.send_to(server.address, &request).await;
    assert_eq!((again.is_replayed(), again.body), (true, first.body));
    assert_eq!(
        (fixture.work("insert").await, fixture.claims().await),
        (1, 1)
    );
}

/// Goal: a request without a transaction, or whose transaction is taken, gets 500 and no handler,
/// so that nothing is written outside of the transaction.
#[tokio::test]
async fn request_without_a_transaction_is_rejected() {
    let fixture = Fixture::new(Mode::Transaction).await;
    let bare = Server::start(router()).await;
    let leased = layer(Mode::Lease, fixture.app.pool.clone());
    let leased = Server::start(router().layer(leased)).await;
    let protected = layer(Mode::Transaction, fixture.app.pool.clone());
    let protected = Server::start(router().layer(protected)).await;
    for (server, path) in [
        (&bare, "/insert"),
        (&leased, "/insert"),
        (&bare, "/call"),
        (&protected, "/call"),
        (&protected, "/twice"),
    ] {
        let answer = fixture.send_to(server.address, &ask(path).path(path)).await;
        answer.assert_problem(500, "failed");
    }
    assert_eq!(fixture.work("/insert").await, 0);
}

#[tokio::test]
async fn optional_extractor_returns_what_exists() {
    let fixture = Fixture::new(Mode::Transaction).await;
    let bare = Server::start(router()).await;
    let leased = layer(Mode::Lease, fixture.app.pool.clone());
    let leased = Server::start(router().layer(leased)).await;
    let protected = layer(Mode::Transaction, fixture.app.pool.clone());
    let protected = Server::start(router().layer(protected)).await;
    for (server, key, expected) in [
        (&bare, "a", "transaction false, lease false"),
        (&leased, "b", "transaction false, lease true"),
        (&protected, "c", "transaction true, lease false"),
    ] {
        let request = ask(key).path("/optional");
        let answer = fixture.send_to(server.address, &request).await;
        assert_eq!(answer.body, expected);
    }
}

#[tokio::test]
async fn extracted_lease_makes_external_calls() {
    let fixture = Fixture::new(Mode::Lease).await;
    let layer = layer(Mode::Lease, fixture.app.pool.clone());
    let server = Server::start(router().layer(layer)).await;
    let request = ask("call").path("/call");
    let first = fixture.send_to(server.address, &request).await;
    assert_eq!(first.status, StatusCode::OK, "{first:?}");
    let again = fixture.send_to(server.address, &request).await;
    assert_eq!((again.is_replayed(), again.body), (true, first.body));
}
