//! Tests of the proxy in front of a server that only records messages and replies to them. The
//! tests with a server of PostgreSQL are in `tests/test_util.rs`.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::timeout,
};
use tokio_postgres::Config;

use super::{
    protocol::simple_query,
    proxy::{Crash, CrashProxy},
};

/// The longest time that a test waits for one event.
const DEADLINE: Duration = Duration::from_secs(30);

const READY: &[u8] = b"Z\0\0\0\x05I";

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap();
    [&[kind][..], &length.to_be_bytes(), body].concat()
}

fn query(sql: &str) -> Vec<u8> {
    simple_query(sql).unwrap()
}

/// A server for one connection. The argument of `start` is the tag with which it replies to COMMIT.
struct Server {
    config: Config,
    /// Ends with the connection. Returns the bytes that the client sent after its startup message,
    /// and the listener, which keeps the port open.
    received: JoinHandle<(Vec<u8>, TcpListener)>,
}

impl Server {
    async fn start(end: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut config = Config::new();
        config.host("127.0.0.1");
        config.port(listener.local_addr().unwrap().port());
        let received = tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            let length = client.read_u32().await.unwrap();
            let mut first = vec![0; usize::try_from(length).unwrap() - 4];
            client.read_exact(&mut first).await.unwrap();
            client.write_all(READY).await.unwrap();
            let (mut received, mut replied) = (Vec::new(), 0);
            while let Ok(1..) = client.read_buf(&mut received).await {
                while let Some((length, reply)) = reply(&received[replied..], end) {
                    replied += length;
                    // The proxy may have closed the connection.
                    let _ = client.write_all(&reply).await;
                }
            }
            (received, listener)
        });
        Self { config, received }
    }

    async fn received(self) -> Vec<u8> {
        timeout(DEADLINE, self.received).await.unwrap().unwrap().0
    }
}

/// Returns the length of the first message and the reply to it.
fn reply(received: &[u8], end: &str) -> Option<(usize, Vec<u8>)> {
    let (header, _) = received.split_first_chunk::<5>()?;
    let length = 1 + usize::try_from(u32::from_be_bytes(header[1..].try_into().unwrap())).unwrap();
    let body = received.get(5..length)?;
    let done = message(b'C', b"SELECT 1\0");
    let ended = message(b'C', &[end.as_bytes(), b"\0"].concat());
    let has_commit = body.windows(6).any(|window| window == b"COMMIT");
    let reply = match header[0] {
        b'Q' if has_commit => [&*done, &ended, READY].concat(),
        b'Q' => [&*done, READY].concat(),
        // In these tests only COMMIT is executed in the extended protocol.
        b'E' => ended,
        b'S' => READY.to_vec(),
        _ => Vec::new(),
    };
    Some((length, reply))
}

/// Opens a connection through the proxy and waits until the server is ready.
async fn connect(proxy: &CrashProxy) -> TcpStream {
    let mut client = dial(proxy).await;
    client.write_all(b"\0\0\0\x08\0\x03\0\0").await.unwrap();
    let mut ready = [0; READY.len()];
    client.read_exact(&mut ready).await.unwrap();
    client
}

async fn dial(proxy: &CrashProxy) -> TcpStream {
    let port = proxy.config().get_ports()[0];
    TcpStream::connect(("127.0.0.1", port)).await.unwrap()
}

/// Reads until the connection is closed or reset.
async fn read_to_end(client: &mut TcpStream) -> Vec<u8> {
    let mut replies = Vec::new();
    let read = async { while let Ok(1..) = client.read_buf(&mut replies).await {} };
    timeout(DEADLINE, read)
        .await
        .expect("the connection is open");
    replies
}

/// The ways to send COMMIT: the name of the way, the messages before COMMIT, and the messages that
/// execute COMMIT.
fn commits() -> Vec<(&'static str, Vec<u8>, Vec<u8>)> {
    let bind = |statement: &str| message(b'B', &[b"\0", statement.as_bytes(), &[0; 7]].concat());
    let parse = |name: &str| message(b'P', &[name.as_bytes(), b"\0COMMIT\0\0\0"].concat());
    let execute = [message(b'E', &[0; 5]), message(b'S', b"")].concat();
    vec![
        ("simple", query("BEGIN"), query("COMMIT")),
        (
            "last in a query",
            query("BEGIN"),
            query("SAVEPOINT idem; COMMIT"),
        ),
        ("extended", [parse(""), bind("")].concat(), execute.clone()),
        (
            "prepared",
            [parse("s1"), message(b'S', b""), query("BEGIN"), bind("s1")].concat(),
            execute,
        ),
    ]
}

fn contains(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|window| window == what)
}

/// Invariant: the server receives everything before COMMIT and nothing of COMMIT.
#[tokio::test]
async fn crash_before_commit_keeps_commit_from_the_server() {
    for (form, before, commit) in commits() {
        let server = Server::start("COMMIT").await;
        let proxy = CrashProxy::start(&server.config).await.unwrap();
        let mut client = connect(&proxy).await;
        proxy.crash_once(Crash::BeforeCommit);
        client
            .write_all(&[&*before, &commit].concat())
            .await
            .unwrap();
        let replies = read_to_end(&mut client).await;
        assert!(!contains(&replies, b"COMMIT"), "{form}");
        assert_eq!(server.received().await, before, "{form}");
        assert_eq!(proxy.crashes(), 1, "{form}");
    }
}

/// Invariant: the server receives COMMIT, and the client receives no reply of the same round trip.
#[tokio::test]
async fn crash_after_commit_loses_the_reply() {
    for (form, before, commit) in commits() {
        let server = Server::start("COMMIT").await;
        let proxy = CrashProxy::start(&server.config).await.unwrap();
        let mut client = connect(&proxy).await;
        client.write_all(&query("SELECT 1")).await.unwrap();
        let mut earlier = [0; 14 + READY.len()];
        client.read_exact(&mut earlier).await.unwrap();
        proxy.crash_once(Crash::AfterCommit);
        client
            .write_all(&[&*before, &commit].concat())
            .await
            .unwrap();
        let replies = read_to_end(&mut client).await;
        assert_eq!(replies, b"", "{form}");
        let received = server.received().await;
        assert_eq!(
            received,
            [query("SELECT 1"), before, commit].concat(),
            "{form}"
        );
        assert_eq!(proxy.crashes(), 1, "{form}");
    }
}

#[tokio::test]
async fn commit_passes_without_a_request() {
    for (form, before, commit) in commits() {
        let server = Server::start("COMMIT").await;
        let proxy = CrashProxy::start(&server.config).await.unwrap();
        let mut client = connect(&proxy).await;
        client
            .write_all(&[&*before, &commit].concat())
            .await
            .unwrap();
        client.shutdown().await.unwrap();
        let replies = read_to_end(&mut client).await;
        assert!(contains(&replies, b"COMMIT\0"), "{form}");
        assert_eq!(server.received().await, [before, commit].concat(), "{form}");
        assert_eq!(proxy.crashes(), 0, "{form}");
    }
}

/// Goal: a COMMIT that the server executes as ROLLBACK does not use up the request of a crash.
#[tokio::test]
async fn rollback_in_place_of_commit_keeps_the_request() {
    let server = Server::start("ROLLBACK").await;
    let proxy = CrashProxy::start(&server.config).await.unwrap();
    let mut client = connect(&proxy).await;
    proxy.crash_once(Crash::AfterCommit);
    client.write_all(&query("COMMIT")).await.unwrap();
    client.shutdown().await.unwrap();
    let replies = read_to_end(&mut client).await;
    assert!(contains(&replies, b"ROLLBACK\0"));
    assert_eq!(proxy.crashes(), 0);
}

#[tokio::test]
async fn crash_for_good_closes_new_connections() {
    let server = Server::start("COMMIT").await;
    let proxy = CrashProxy::start(&server.config).await.unwrap();
    let mut client = connect(&proxy).await;
    proxy.crash_for_good(Crash::BeforeCommit);
    client.write_all(&query("COMMIT")).await.unwrap();
    read_to_end(&mut client).await;
    assert_eq!(read_to_end(&mut dial(&proxy).await).await, b"");
    proxy.recover();
    // The proxy declines encryption on this connection, which shows that the connection is open.
    let mut client = dial(&proxy).await;
    client
        .write_all(b"\0\0\0\x08\x04\xd2\x16\x2f")
        .await
        .unwrap();
    assert_eq!(
        timeout(DEADLINE, client.read_u8()).await.unwrap().unwrap(),
        b'N'
    );
}

#[tokio::test]
async fn cancelled_statement_is_replaced_once() {
    let server = Server::start("COMMIT").await;
    let proxy = CrashProxy::start(&server.config).await.unwrap();
    let mut client = connect(&proxy).await;
    proxy.cancel_once("BEGIN");
    let begin_twice = [query("SELECT 1"), query("BEGIN"), query("BEGIN")].concat();
    client.write_all(&begin_twice).await.unwrap();
    client.shutdown().await.unwrap();
    read_to_end(&mut client).await;
    let received = server.received().await;
    let cancelled = query("SELECT pg_cancel_backend(pg_backend_pid())");
    assert_eq!(
        received,
        [query("SELECT 1"), cancelled, query("BEGIN")].concat()
    );
    assert_eq!(proxy.cancellations(), 1);
}
