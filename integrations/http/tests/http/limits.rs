//! Tests of requests and responses above the size limits.

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper_util::{client::legacy, rt::TokioExecutor};
use idem_testkit::in_time;

use crate::fixtures::{Answer, Fixture, MODES, ask};

#[tokio::test]
async fn request_above_the_limit_gets_413_and_is_not_run() {
    for mode in MODES {
        let fixture = Fixture::with(mode, |layer| layer.request_limit(100)).await;
        fixture
            .send(&ask("k").body(vec![b'x'; 101]))
            .await
            .assert_problem(413, "request-too-large");
        fixture.assert_untouched().await;
        fixture
            .send(&ask("k").body(vec![b'x'; 100]))
            .await
            .assert_run(201, 1);
    }
}

#[tokio::test]
async fn limit_applies_to_a_request_without_content_length() {
    for mode in MODES {
        let fixture = Fixture::with(mode, |layer| layer.request_limit(100)).await;
        let client = legacy::Client::builder(TokioExecutor::new()).build_http();
        for (pieces, status) in [(20, 413), (10, 201)] {
            let pieces = stream::iter((0..pieces).map(|_| {
                Ok::<_, std::io::Error>(http_body::Frame::data(Bytes::from_static(b"ten bytes.")))
            }));
            let request = http::Request::post(format!("http://{}/orders", fixture.server.address))
                .header("idempotency-key", "chunks")
                .body(StreamBody::new(pieces))
                .unwrap();
            let (parts, body) = in_time(client.request(request)).await.unwrap().into_parts();
            let response = Answer {
                status: parts.status,
                headers: parts.headers,
                body: String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap(),
            };
            assert_eq!(response.status, status, "{mode:?}: {response:?}");
        }
        assert_eq!(
            (fixture.runs(), fixture.work(&"ten bytes.".repeat(10)).await),
            (1, 2)
        );
    }
}

/// Goal: the client does not get a response that cannot be recorded, because a repeated request
/// would take effect again.
#[tokio::test]
async fn response_above_the_limit_gets_500_and_is_not_recorded() {
    for mode in MODES {
        let fixture = Fixture::with(mode, |layer| layer.response_limit(1_000)).await;
        let large = fixture.send(&ask("k").with("x-size", "1000")).await;
        large.assert_problem(500, "response-too-large");
        assert_eq!(fixture.claims().await, 0, "{mode:?}");
        if mode == crate::fixtures::Mode::Transaction {
            fixture.assert_untouched().await;
        }
        fixture
            .send(&ask("k").with("x-size", "900"))
            .await
            .assert_run(201, 2);
        // The size of a response that is not recorded is not limited.
        let failed = ask("failed").with("x-size", "5000").with("x-status", "503");
        fixture.send(&failed).await.assert_run(503, 3);
    }
}
