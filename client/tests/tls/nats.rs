//! NATS.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;

use async_nats::jetstream::{self, stream};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use idem_brokers::{Authority, Certified, Nats, Validity};
use idem_client::{NatsConfig, NatsPublisher, PublishError, Publisher};
use nkeys::KeyPair;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{DEADLINE, EXPIRED, OTHER_HOST, UNKNOWN, assert_unavailable, effect};

fn tls(server: &Certified, clients: &str) -> String {
    let (certificate, key) = (server.certificate.display(), server.key.display());
    format!("tls {{ cert_file: \"{certificate}\", key_file: \"{key}\", {clients} }}")
}

fn url(server: &Nats, host: &str) -> String {
    format!("tls://{host}:{}", server.port())
}

/// Publishes where no stream is: only a connection brings that to light.
async fn reach(config: NatsConfig) -> Result<(), PublishError> {
    NatsPublisher::new(config).publish(&effect("nowhere")).await
}

fn assert_reached(published: Result<(), PublishError>) {
    assert!(matches!(published, Err(PublishError::TopicUnavailable(_))), "{published:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_is_verified() {
    let authority = Authority::create().unwrap();
    let server = authority.server(&["127.0.0.1"], Validity::Now).unwrap();
    let server = Nats::start_with(&tls(&server, "")).unwrap();
    let config = NatsConfig::new(url(&server, "127.0.0.1"));
    assert_reached(reach(config.clone().ca(authority.ca())).await);

    let stranger = Authority::create().unwrap();
    assert_unavailable(reach(config.clone()).await, UNKNOWN);
    assert_unavailable(reach(config.ca(stranger.ca())).await, UNKNOWN);
    let other = NatsConfig::new(url(&server, "localhost")).ca(authority.ca());
    assert_unavailable(reach(other).await, OTHER_HOST);
    // The server asks for TLS, and the URL does not: the system's authorities decide.
    let plain = NatsConfig::new(format!("nats://127.0.0.1:{}", server.port()));
    assert_unavailable(reach(plain).await, UNKNOWN);
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_certificate_of_nats_is_an_error() {
    let authority = Authority::create().unwrap();
    let server = authority.server(&["127.0.0.1"], Validity::Expired).unwrap();
    let server = Nats::start_with(&tls(&server, "")).unwrap();
    let config = NatsConfig::new(url(&server, "127.0.0.1")).ca(authority.ca());
    assert_unavailable(reach(config).await, EXPIRED);
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_without_tls_is_an_error_behind_a_tls_url() {
    let server = Nats::start().unwrap();
    let authority = Authority::create().unwrap();
    let config = NatsConfig::new(url(&server, "127.0.0.1")).ca(authority.ca());
    assert_unavailable(reach(config).await, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn client_certificate_is_presented_to_nats() {
    let authority = Authority::create().unwrap();
    let server = authority.server(&["127.0.0.1"], Validity::Now).unwrap();
    let clients = format!("ca_file: \"{}\", verify: true", authority.ca().display());
    let server = Nats::start_with(&tls(&server, &clients)).unwrap();
    let config = NatsConfig::new(url(&server, "127.0.0.1")).ca(authority.ca());
    assert_unavailable(reach(config.clone()).await, "");
    let client = authority.client("relay").unwrap();
    assert_reached(reach(config.client_certificate(client.certificate, client.key)).await);
}

/// Goal: the login of a URL reaches the server. The client library ignores it.
#[tokio::test(flavor = "multi_thread")]
async fn login_of_a_url_reaches_nats() {
    let server = Nats::start_with("authorization { user: ann, password: \"p@ss\" }").unwrap();
    let url = |login: &str| NatsConfig::new(format!("nats://{login}127.0.0.1:{}", server.port()));
    assert_reached(reach(url("ann:p%40ss@")).await);
    assert_unavailable(reach(url("ann:wrong@")).await, "authorization");
    assert_unavailable(reach(url("")).await, "authorization");
    let server = Nats::start_with("authorization { token: s3cret }").unwrap();
    let token = format!("nats://s3cret@127.0.0.1:{}", server.port());
    assert_reached(reach(NatsConfig::new(token)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn nkey_logs_in_to_nats() {
    let (user, stranger) = (KeyPair::new_user(), KeyPair::new_user());
    let users = format!("authorization {{ users = [ {{ nkey: {} }} ] }}", user.public_key());
    let server = Nats::start_with(&users).unwrap();
    let files = Authority::create().unwrap();
    let file = files.dir().join("user.nk");
    let config = NatsConfig::new(server.url()).nkey_seed_file(&file);
    fs::write(&file, format!("{}\n", user.seed().unwrap())).unwrap();
    assert_reached(reach(config.clone()).await);
    fs::write(&file, stranger.seed().unwrap()).unwrap();
    assert_unavailable(reach(config).await, "authorization");
}

/// A token as NATS signs it.
fn jwt(issuer: &KeyPair, subject: &str, nats: Value) -> String {
    let header = json!({"typ": "JWT", "alg": "ed25519-nkey"});
    let claims = json!({"jti": "1", "iat": 1, "iss": issuer.public_key(), "name": "test", "sub": subject, "nats": nats});
    let encode = |value: Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", encode(header), encode(claims));
    let signature = issuer.sign(text.as_bytes()).unwrap();
    format!("{text}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_file_logs_in_to_nats() {
    let (operator, account, system) = (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_account());
    let (user, stranger) = (KeyPair::new_user(), KeyPair::new_user());
    let limits = json!({"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
        "conn": -1, "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1});
    let operator_jwt = jwt(
        &operator,
        &operator.public_key(),
        json!({"type": "operator", "version": 2, "system_account": system.public_key()}),
    );
    let account_claims = json!({"type": "account", "version": 2, "limits": limits});
    let account_jwt = jwt(&operator, &account.public_key(), account_claims);
    let plain = json!({"type": "account", "version": 2, "limits": {"subs": -1, "data": -1, "payload": -1,
        "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1}});
    let system_jwt = jwt(&operator, &system.public_key(), plain);
    let settings = format!(
        "operator: {operator_jwt}\nsystem_account: {}\nresolver: MEMORY\n\
         resolver_preload: {{ {}: {account_jwt}, {}: {system_jwt} }}",
        system.public_key(),
        account.public_key(),
        system.public_key(),
    );
    let server = Nats::start_with(&settings).unwrap();
    let files = Authority::create().unwrap();
    let file = files.dir().join("user.creds");
    let credentials = |signer: &KeyPair| {
        let user_jwt = jwt(
            &account,
            &user.public_key(),
            json!({"type": "user", "version": 2,
            "subs": -1, "data": -1, "payload": -1}),
        );
        format!(
            "-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
            signer.seed().unwrap()
        )
    };
    let config = NatsConfig::new(server.url()).credentials(&file);
    fs::write(&file, credentials(&user)).unwrap();
    assert_reached(reach(config.clone()).await);
    fs::write(&file, credentials(&stranger)).unwrap();
    assert_unavailable(reach(config).await, "authorization");
}

/// The greeting of a server, which names the others of its cluster.
fn greeting(server: &Nats) -> String {
    let mut line = String::new();
    let stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < deadline, "never came: {what}");
        sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// Goal: after the loss of a server with TLS, the client reaches no server of its cluster in plaintext.
#[tokio::test(flavor = "multi_thread")]
async fn discovered_server_without_tls_is_not_reached_in_plaintext() {
    let authority = Authority::create().unwrap();
    let certified = authority.server(&["127.0.0.1"], Validity::Now).unwrap();
    // JetStream asks for a route; the one at port 1 leads nowhere.
    let cluster = "cluster { name: c, listen: \"127.0.0.1:-1\", routes: [ \"nats://127.0.0.1:1\" ] }";
    let plain = Nats::start_with(&format!("server_name: b\ndebug: true\n{cluster}")).unwrap();
    let log = plain.log().unwrap();
    let route = log.lines().find_map(|line| line.split("route connections on ").nth(1));
    let route = route.unwrap_or_else(|| panic!("no route in {log}")).trim();
    let settings = format!(
        "server_name: a\n{}\ncluster {{ name: c, listen: \"127.0.0.1:-1\", routes: [ \"nats://{route}\" ] }}",
        tls(&certified, "")
    );
    let mut secured = Nats::start_with(&settings).unwrap();
    let named = format!("127.0.0.1:{}", plain.port());
    until("the cluster", || greeting(&secured).contains(&named)).await;

    let config = NatsConfig::new(url(&secured, "127.0.0.1")).ca(authority.ca()).timeout_s(2);
    let publisher = NatsPublisher::new(config);
    // A cluster of two has perhaps no leader: what counts is that the client is connected.
    let _ = publisher.publish(&effect("nowhere")).await;
    secured.kill().unwrap();
    until("an attempt at the other server", || {
        plain.log().unwrap().contains("Client parser ERROR")
    })
    .await;
    assert_unavailable(publisher.publish(&effect("nowhere")).await, "connection is lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_takes_effects_over_tls() {
    let authority = Authority::create().unwrap();
    let server = authority.server(&["127.0.0.1"], Validity::Now).unwrap();
    let mut nats = Nats::start().unwrap();
    let context = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let config = stream::Config {
        name: "orders".into(),
        ..Default::default()
    };
    context.create_stream(config).await.unwrap();
    nats.stop().unwrap();
    nats.configure(&tls(&server, ""));
    nats.start_again().unwrap();
    let config = NatsConfig::new(url(&nats, "127.0.0.1")).ca(authority.ca());
    NatsPublisher::new(config).publish(&effect("orders")).await.unwrap();
}

#[test]
fn nats_settings_that_contradict_each_other_are_errors() {
    for (config, reason) in [
        (NatsConfig::new("nats://a").ca("/ca.pem"), "no URL is tls://"),
        (NatsConfig::new("tls://a").ca("/none.pem"), "/none.pem"),
        (NatsConfig::new("wss://a"), "not supported"),
        (NatsConfig::new("nats://a").credentials("/none.creds"), "/none.creds"),
        (NatsConfig::new("nats://u:p@a").credentials("/c"), "several logins"),
        (NatsConfig::new("nats://u:p@a,nats://u:q@b"), "differs"),
    ] {
        let error = config.check().unwrap_err().to_string();
        assert!(error.contains(reason), "{reason}: {error}");
    }
}
