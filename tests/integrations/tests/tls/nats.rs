//! Tests of TLS and logins of NATS.

use std::fs;

use async_nats::jetstream::{self, stream};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use idem_brokers::{Authority, Certified, Nats, Validity};
use idem_nats::{NatsConfig, NatsPublisher, NatsSource, NatsSubscription};
use idem_runtime::{PublishError, Publisher, Source};
use idem_testkit::{DEADLINE, until};
use nkeys::KeyPair;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{self, error::TryRecvError};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use crate::{EXPIRED, OTHER_HOST, UNKNOWN, assert_unavailable, effect};

fn tls(server: &Certified, clients: &str) -> String {
    let (certificate, key) = (server.certificate.display(), server.key.display());
    // By default the server closes a connection whose handshake takes 2 seconds, which happens on a
    // busy machine.
    format!("tls {{ cert_file: \"{certificate}\", key_file: \"{key}\", timeout: 60, {clients} }}")
}

fn url(server: &Nats, host: &str) -> String {
    format!("tls://{host}:{}", server.port())
}

fn trusting(authority: &Authority, url: String) -> NatsConfig {
    NatsConfig {
        ca: Some(authority.ca()),
        ..NatsConfig::new(url)
    }
}

/// Publishes to a subject without a stream. The error shows whether the connection succeeded.
async fn reach(config: NatsConfig) -> Result<(), PublishError> {
    NatsPublisher::new(config).publish(&effect("nowhere")).await
}

fn assert_reached(published: Result<(), PublishError>) {
    assert!(
        matches!(published, Err(PublishError::TopicUnavailable(_))),
        "{published:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_publisher_verifies_the_server() {
    let authority = Authority::create().unwrap();
    let server = authority.server(&["127.0.0.1"], Validity::Now).unwrap();
    let server = Nats::start_with(&tls(&server, "")).unwrap();
    let url_of = |host| url(&server, host);
    assert_reached(reach(trusting(&authority, url_of("127.0.0.1"))).await);

    let unrelated = Authority::create().unwrap();
    assert_unavailable(reach(NatsConfig::new(url_of("127.0.0.1"))).await, UNKNOWN);
    let config = trusting(&unrelated, url_of("127.0.0.1"));
    assert_unavailable(reach(config).await, UNKNOWN);
    let other = trusting(&authority, url_of("localhost"));
    assert_unavailable(reach(other).await, OTHER_HOST);
    // The URL does not mention TLS, but the server requires it. The client then uses the
    // authorities of the system.
    let plain = NatsConfig::new(format!("nats://127.0.0.1:{}", server.port()));
    assert_unavailable(reach(plain).await, UNKNOWN);
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_certificate_of_nats_is_an_error() {
    let authority = Authority::create().unwrap();
    let server = authority.server(&["127.0.0.1"], Validity::Expired).unwrap();
    let server = Nats::start_with(&tls(&server, "")).unwrap();
    let config = trusting(&authority, url(&server, "127.0.0.1"));
    assert_unavailable(reach(config).await, EXPIRED);
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_without_tls_fails_with_a_tls_url() {
    let server = Nats::start().unwrap();
    assert_reached(reach(NatsConfig::new(server.url())).await);
    let authority = Authority::create().unwrap();
    let config = trusting(&authority, url(&server, "127.0.0.1"));
    assert_unavailable(reach(config).await, "");
    // The client receives either the reply of the server or the end of the connection, so its error
    // is not checked. The log of the server shows the failed handshake.
    until("the server has rejected the handshake", async || {
        server.log().unwrap().contains("Client parser ERROR")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_certificate_is_presented_to_nats() {
    let authority = Authority::create().unwrap();
    let server = authority.server(&["127.0.0.1"], Validity::Now).unwrap();
    let clients = format!("ca_file: \"{}\", verify: true", authority.ca().display());
    let server = Nats::start_with(&tls(&server, &clients)).unwrap();
    let config = trusting(&authority, url(&server, "127.0.0.1"));
    let client = authority.client("relay").unwrap();
    let certified = NatsConfig {
        client_certificate: Some(client.certificate),
        client_key: Some(client.key),
        ..config.clone()
    };
    assert_reached(reach(certified).await);
    assert_unavailable(reach(config).await, "");
    let rejection = "client didn't provide a certificate";
    until(rejection, async || {
        server.log().unwrap().contains(rejection)
    })
    .await;
}

/// Goal: the login in a URL reaches the server. The NATS library would ignore this login.
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
    let (user, unrelated) = (KeyPair::new_user(), KeyPair::new_user());
    let users = format!(
        "authorization {{ users = [ {{ nkey: {} }} ] }}",
        user.public_key()
    );
    let server = Nats::start_with(&users).unwrap();
    let files = Authority::create().unwrap();
    let file = files.dir().join("user.nk");
    let config = NatsConfig {
        nkey_seed_file: Some(file.clone()),
        ..NatsConfig::new(server.url())
    };
    fs::write(&file, format!("{}\n", user.seed().unwrap())).unwrap();
    assert_reached(reach(config.clone()).await);
    fs::write(&file, unrelated.seed().unwrap()).unwrap();
    assert_unavailable(reach(config).await, "authorization");
}

/// Returns a signed token in the format of NATS.
fn jwt(issuer: &KeyPair, subject: &str, nats: Value) -> String {
    let header = json!({"typ": "JWT", "alg": "ed25519-nkey"});
    let claims = json!({"jti": "1", "iat": 1, "iss": issuer.public_key(), "name": "test",
        "sub": subject, "nats": nats});
    let encode = |value: Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", encode(header), encode(claims));
    let signature = issuer.sign(text.as_bytes()).unwrap();
    format!("{text}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_file_logs_in_to_nats() {
    let (operator, account, system) = (
        KeyPair::new_operator(),
        KeyPair::new_account(),
        KeyPair::new_account(),
    );
    let (user, unrelated) = (KeyPair::new_user(), KeyPair::new_user());
    let limits = json!({"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1,
        "wildcards": true, "conn": -1, "leaf": -1, "mem_storage": -1, "disk_storage": -1,
        "streams": -1, "consumer": -1});
    let operator_jwt = jwt(
        &operator,
        &operator.public_key(),
        json!({"type": "operator", "version": 2, "system_account": system.public_key()}),
    );
    let account_claims = json!({"type": "account", "version": 2, "limits": limits});
    let account_jwt = jwt(&operator, &account.public_key(), account_claims);
    let plain = json!({"type": "account", "version": 2, "limits": {"subs": -1, "data": -1,
        "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1}});
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
    let config = NatsConfig {
        credentials: Some(file.clone()),
        ..NatsConfig::new(server.url())
    };
    fs::write(&file, credentials(&user)).unwrap();
    assert_reached(reach(config.clone()).await);
    fs::write(&file, credentials(&unrelated)).unwrap();
    assert_unavailable(reach(config).await, "authorization");
}

/// A proxy in front of a server. It adds the address of another server to the greeting of the first
/// server, which is sent in plaintext.
struct Forger {
    port: u16,
    /// The number of accepted connections.
    accepted: watch::Receiver<u32>,
    /// Closes the first connection.
    close: oneshot::Sender<()>,
}

/// Starts a forger that forwards the first connection and closes all later ones at once.
async fn start_forger(server: &Nats, added: String) -> Forger {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = server.port();
    let (count, accepted) = watch::channel(0);
    let (close, closed) = oneshot::channel();
    tokio::spawn(async move {
        let mut client = listener.accept().await.unwrap().0;
        count.send_modify(|count| *count += 1);
        let mut server = BufReader::new(TcpStream::connect(("127.0.0.1", server)).await.unwrap());
        let mut line = String::new();
        server.read_line(&mut line).await.unwrap();
        let mut info: Value = serde_json::from_str(line.strip_prefix("INFO ").unwrap()).unwrap();
        info["connect_urls"] = json!([added]);
        client
            .write_all(format!("INFO {info}\r\n").as_bytes())
            .await
            .unwrap();
        tokio::select! {
            _ = copy_bidirectional(&mut client, &mut server) => {}
            _ = closed => {}
        }
        drop(client);
        while let Ok((stream, _)) = listener.accept().await {
            drop(stream);
            count.send_modify(|count| *count += 1);
        }
    });
    Forger {
        port,
        accepted,
        close,
    }
}

/// Starts a server with the greeting of a server without TLS. Returns its port, and a channel with
/// the first line that each client sends.
async fn start_plaintext_server() -> (u16, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (lines, received) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let info = json!({"server_id": "x", "version": "2.10.0", "proto": 1, "headers": true,
                "max_payload": 1024, "port": 1, "host": "x", "go": "", "client_id": 1});
            let _ = stream
                .write_all(format!("INFO {info}\r\n").as_bytes())
                .await;
            let mut line = Vec::new();
            let _ = BufReader::new(stream).read_until(b'\n', &mut line).await;
            let _ = lines.send(String::from_utf8_lossy(&line).into_owned());
        }
    });
    (port, received)
}

/// Goal: the greeting precedes TLS, so an attacker can change it. The client never connects to a
/// server that only the greeting names, neither in plaintext nor with another host name to verify.
/// It sends the login only to servers of the URL.
#[tokio::test(flavor = "multi_thread")]
async fn server_of_a_forged_greeting_is_not_reached() {
    let authority = Authority::create().unwrap();
    let certified = authority.server(&["127.0.0.1"], Validity::Now).unwrap();
    let login = "authorization { user: ann, password: s3cret }";
    let server = Nats::start_with(&format!("{}\n{login}", tls(&certified, ""))).unwrap();
    for scheme in ["", "ws://"] {
        let (port, mut received) = start_plaintext_server().await;
        let mut forger = start_forger(&server, format!("{scheme}127.0.0.1:{port}")).await;
        let url = format!("tls://ann:s3cret@127.0.0.1:{}", forger.port);
        let publisher = NatsPublisher::new(NatsConfig {
            timeout_s: 2,
            ..trusting(&authority, url)
        });
        assert_reached(publisher.publish(&effect("nowhere")).await);
        forger.close.send(()).unwrap();
        // The client prefers servers with fewer failures. After this number of connections, it has
        // therefore tried all servers of its list.
        let again = forger.accepted.wait_for(|count| *count > 4);
        timeout(DEADLINE, again).await.unwrap().unwrap();
        assert_eq!(received.try_recv(), Err(TryRecvError::Empty), "{scheme:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_stores_effects_over_tls() {
    let authority = Authority::create().unwrap();
    let server = authority.server(&["127.0.0.1"], Validity::Now).unwrap();
    let mut nats = Nats::start().unwrap();
    let context = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let config = stream::Config {
        name: "orders".into(),
        ..Default::default()
    };
    context.create_stream(config).await.unwrap();
    // This client has no settings for TLS, so it must not connect again.
    drop(context);
    nats.stop().unwrap();
    nats.configure(&tls(&server, ""));
    nats.start_again().unwrap();
    let config = trusting(&authority, url(&nats, "127.0.0.1"));
    let sent = effect("orders");
    let publisher = NatsPublisher::new(config.clone());
    publisher.publish(&sent).await.unwrap();
    let mut source = NatsSource::new(config, NatsSubscription::new("orders", "test"));
    let stored = timeout(DEADLINE, source.next()).await.unwrap();
    let stored = stored.unwrap().unwrap();
    let id = sent.message_id.to_string();
    assert_eq!(stored.message().message_id(), Some(id.as_str()));
}

#[test]
fn contradictory_nats_settings_fail() {
    for (config, reason) in [
        (
            NatsConfig {
                ca: Some("/ca.pem".into()),
                ..NatsConfig::new("nats://a")
            },
            "no URL is tls://",
        ),
        (
            NatsConfig {
                ca: Some("/none.pem".into()),
                ..NatsConfig::new("tls://a")
            },
            "/none.pem",
        ),
        (NatsConfig::new("wss://a"), "not supported"),
        (
            NatsConfig {
                credentials: Some("/none.creds".into()),
                ..NatsConfig::new("nats://a")
            },
            "/none.creds",
        ),
        (
            NatsConfig {
                credentials: Some("/c".into()),
                ..NatsConfig::new("nats://u:p@a")
            },
            "several logins",
        ),
        (NatsConfig::new("nats://u:p@a,nats://u:q@b"), "differs"),
    ] {
        let error = config.check().unwrap_err().to_string();
        assert!(error.contains(reason), "{reason}: {error}");
    }
}

#[test]
fn nkey_file_without_a_valid_seed_is_an_error() {
    let files = Authority::create().unwrap();
    let file = files.dir().join("user.nk");
    let seed = KeyPair::new_user().seed().unwrap();
    let check = |text: &str| {
        fs::write(&file, text).unwrap();
        NatsConfig {
            nkey_seed_file: Some(file.clone()),
            ..NatsConfig::new("nats://a")
        }
        .check()
    };
    check(&format!("# comment\n{seed}\n")).unwrap();
    let account = KeyPair::new_account().seed().unwrap();
    let last = if seed.ends_with('A') { "E" } else { "A" };
    let damaged = format!("{}{last}", &seed[..seed.len() - 1]);
    for text in [&damaged, &seed[..20], "SU", "SUs3cret", &account, ""] {
        let error = check(text).expect_err(text);
        let shown = format!("{error} {error:?}");
        assert!(
            shown.contains("user.nk") && shown.contains("no valid seed of a NATS user"),
            "{shown}"
        );
        assert!(text.len() < 3 || !shown.contains(text), "{shown}");
    }
}
