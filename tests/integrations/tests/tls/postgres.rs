//! Tests of TLS and logins of PostgreSQL.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem_brokers::{Authority, Validity};
use idem_cluster::{Cluster, Install};
use idem_runtime::{Handled, Idem, Message, PoolConfig, Tx};
use idem_testkit::until;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::{EXPIRED, OTHER_HOST, UNKNOWN, chain};

/// A server over TCP. It has a certificate for `db.test` from `authority`.
struct Server {
    authority: Authority,
    cluster: Cluster,
    address: Ipv4Addr,
}

fn install() -> Install {
    Install::from_env().expect("run cargo xtask setup first")
}

fn start(validity: Validity, hba: Option<&str>) -> Server {
    let authority = Authority::create().unwrap();
    let server = authority.server(&["db.test"], validity).unwrap();
    let builder = Cluster::builder(&install()).name("tls").tcp().unwrap();
    let mut builder = builder.tls(&server.certificate, &server.key, &authority.ca());
    if let Some(lines) = hba {
        builder = builder.hba(lines);
    }
    let cluster = builder.start().unwrap();
    let address = cluster.address().unwrap();
    Server {
        authority,
        cluster,
        address,
    }
}

impl Server {
    fn ca(&self) -> String {
        format!("sslrootcert={}", self.authority.ca().display())
    }

    async fn uses_tls(&self, host: &str, options: &str) -> Result<bool, String> {
        let address = self.address;
        uses_tls(&format!(
            "host={host} hostaddr={address} user=postgres dbname=postgres {options}"
        ))
        .await
    }
}

/// Connects. Returns whether the connection uses TLS, or the error.
async fn uses_tls(connection: &str) -> Result<bool, String> {
    let pool = PoolConfig::parse(connection)
        .and_then(|config| config.max_size(1).build())
        .map_err(|error| chain(&error))?;
    let client = pool.get().await.map_err(|error| chain(&error))?;
    let sql = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    Ok(client
        .query_one(sql, &[])
        .await
        .map_err(|error| chain(&error))?
        .get(0))
}

fn assert_fails(result: Result<bool, String>, reason: &str) {
    let error = result.expect_err(reason);
    assert!(error.contains(reason), "{reason}: {error}");
}

/// Goal: without `sslmode`, a connection over TCP uses TLS and verifies the server.
#[tokio::test]
async fn tcp_without_sslmode_verifies_the_server() {
    let server = start(Validity::Now, None);
    let ca = server.ca();
    for mode in [
        "",
        "sslmode=verify-full",
        "sslmode=require",
        "sslmode=verify-ca",
    ] {
        assert_eq!(
            server.uses_tls("db.test", &format!("{ca} {mode}")).await,
            Ok(true),
            "{mode}"
        );
    }
    let file = server
        .authority
        .ca()
        .display()
        .to_string()
        .replace('/', "%2F");
    let url = format!(
        "postgres://postgres@db.test/postgres?hostaddr={}&sslrootcert={file}",
        server.address
    );
    assert_eq!(uses_tls(&url).await, Ok(true));

    let unrelated = Authority::create().unwrap();
    let wrong = format!("sslrootcert={}", unrelated.ca().display());
    for mode in ["", "sslmode=verify-full", "sslmode=require"] {
        assert_fails(
            server.uses_tls("db.test", &format!("{wrong} {mode}")).await,
            UNKNOWN,
        );
        assert_fails(
            server.uses_tls("other.test", &format!("{ca} {mode}")).await,
            OTHER_HOST,
        );
        assert_fails(server.uses_tls("db.test", mode).await, UNKNOWN);
    }
    assert_fails(
        server
            .uses_tls("db.test", &format!("{wrong} sslmode=verify-ca"))
            .await,
        UNKNOWN,
    );
    assert_eq!(
        server
            .uses_tls("other.test", &format!("{ca} sslmode=verify-ca"))
            .await,
        Ok(true)
    );
    assert_eq!(
        server.uses_tls("db.test", "sslmode=disable").await,
        Ok(false)
    );
}

#[tokio::test]
async fn expired_certificate_of_the_server_is_an_error() {
    let server = start(Validity::Expired, None);
    let ca = server.ca();
    assert_fails(server.uses_tls("db.test", &ca).await, EXPIRED);
    assert_fails(
        server
            .uses_tls("db.test", &format!("{ca} sslmode=verify-ca"))
            .await,
        EXPIRED,
    );
}

/// Goal: if a connection string has an address and no host name, the certificate must contain the
/// address. The address is never used in plaintext.
#[tokio::test]
async fn hostaddr_without_host_must_be_in_the_certificate() {
    let server = start(Validity::Now, None);
    let connection = format!(
        "hostaddr={} user=postgres dbname=postgres {}",
        server.address,
        server.ca()
    );
    assert_fails(uses_tls(&connection).await, OTHER_HOST);
    assert_eq!(
        uses_tls(&format!("{connection} sslmode=verify-ca")).await,
        Ok(true)
    );
}

#[tokio::test]
async fn client_certificate_logs_in_and_a_missing_one_fails() {
    let server = start(Validity::Now, Some("hostssl all all all cert"));
    let ca = server.ca();
    let with = |authority: &Authority, name: &str| {
        let client = authority.client(name).unwrap();
        format!(
            "{ca} sslcert={} sslkey={}",
            client.certificate.display(),
            client.key.display()
        )
    };
    assert_eq!(
        server
            .uses_tls("db.test", &with(&server.authority, "postgres"))
            .await,
        Ok(true)
    );
    assert_fails(server.uses_tls("db.test", &ca).await, "28000");
    assert_fails(
        server
            .uses_tls("db.test", &with(&server.authority, "ann"))
            .await,
        "28000",
    );
    let unrelated = Authority::create().unwrap();
    assert!(
        server
            .uses_tls("db.test", &with(&unrelated, "postgres"))
            .await
            .is_err()
    );
}

/// Goal: a server without TLS is an error in every mode that requires TLS. A connection over a
/// socket needs no TLS. Both rules apply to each host of a list.
#[tokio::test]
async fn server_without_tls_is_reached_over_its_socket_only() {
    let builder = Cluster::builder(&install()).name("no-tls").tcp().unwrap();
    let cluster = builder.start().unwrap();
    let (address, socket) = (
        cluster.address().unwrap(),
        cluster.socket_dir().display().to_string(),
    );
    let authority = Authority::create().unwrap();
    let to = |hosts: &str, options: &str| {
        format!("host={hosts} user=postgres dbname=postgres {options}")
    };
    let ca = format!("sslrootcert={}", authority.ca().display());
    for options in [
        "",
        "sslmode=require",
        &ca,
        &format!("{ca} sslmode=verify-ca"),
    ] {
        for hosts in [address.to_string(), format!("/nonexistent,{address}")] {
            assert_fails(
                uses_tls(&to(&hosts, options)).await,
                "server does not support TLS",
            );
        }
        assert_eq!(
            uses_tls(&to(&socket, options)).await,
            Ok(false),
            "{options}"
        );
        assert_eq!(
            uses_tls(&to(&format!("{address},{socket}"), options)).await,
            Ok(false)
        );
    }
    assert_eq!(
        uses_tls(&to(&address.to_string(), "sslmode=disable")).await,
        Ok(false)
    );
}

/// Goal: a connection to a TCP host uses TLS also if the list of hosts contains a socket.
#[tokio::test]
async fn tcp_host_in_a_list_with_a_socket_uses_tls() {
    let server = start(Validity::Now, None);
    let hosts = format!("/nonexistent,{}", server.address);
    let connection = format!("host={hosts} user=postgres dbname=postgres {}", server.ca());
    assert_fails(uses_tls(&connection).await, OTHER_HOST);
    assert_eq!(
        uses_tls(&format!("{connection} sslmode=verify-ca")).await,
        Ok(true)
    );
    assert!(
        !server
            .cluster
            .log()
            .unwrap()
            .contains("database system was interrupted")
    );
}

/// Starts a server that accepts connections and never sends anything.
async fn silent() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut streams = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            streams.push(stream);
        }
    });
    address
}

/// Goal: if the first host accepts connections and never responds, the client connects to the next
/// host.
#[tokio::test]
async fn silent_host_is_skipped_for_the_next() {
    let server = start(Validity::Now, None);
    let silent = silent().await;
    let hosts = format!(
        "host=127.0.0.1,{} port={},5432",
        server.address,
        silent.port()
    );
    let connection = format!(
        "{hosts} user=postgres dbname=postgres connect_timeout=1 sslmode=verify-ca {}",
        server.ca()
    );
    assert_eq!(uses_tls(&connection).await, Ok(true));
    // The connection succeeds in any order of the hosts.
    for _ in 0..4 {
        assert_eq!(
            uses_tls(&format!("{connection} load_balance_hosts=random")).await,
            Ok(true)
        );
    }
}

#[tokio::test]
async fn silent_host_alone_fails_with_the_timeout() {
    let silent = silent().await;
    let connection = format!(
        "host=127.0.0.1 port={} user=postgres connect_timeout=1",
        silent.port()
    );
    for mode in ["", "sslmode=disable"] {
        assert_fails(
            uses_tls(&format!("{connection} {mode}")).await,
            "the server did not accept the connection within 1s",
        );
    }
}

/// Goal: a `connect_timeout` that is longer than the default takes effect.
#[tokio::test]
async fn connect_timeout_longer_than_the_default_is_used() {
    let server = start(Validity::Now, None);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let target = (server.address, 5432);
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        // The delay is longer than the default of 10 s, and the test cannot shorten it.
        tokio::time::sleep(Duration::from_secs(12)).await;
        let mut server = TcpStream::connect(target).await.unwrap();
        let _ = copy_bidirectional(&mut client, &mut server).await;
    });
    let connection = format!(
        "host=127.0.0.1 port={port} user=postgres dbname=postgres \
         connect_timeout=60 sslmode=verify-ca {}",
        server.ca()
    );
    assert_eq!(uses_tls(&connection).await, Ok(true));
}

#[test]
fn contradictory_postgres_settings_fail() {
    for (options, reason) in [
        ("sslmode=prefer", "fall back to plaintext"),
        ("sslmode=allow", "fall back to plaintext"),
        ("sslmode=verify", "sslmode is none of"),
        ("sslmode=verify-ca", "needs sslrootcert"),
        ("sslmode=verify-ca sslrootcert=system", "needs sslrootcert"),
        ("sslmode=verify-ca sslrootcert=''", "sslrootcert is empty"),
        ("sslrootcert=''", "sslrootcert is empty"),
        ("sslcert='' sslkey=''", "sslcert is empty"),
        ("sslcert=/c.pem sslkey=''", "sslkey is empty"),
        ("sslmode=disable sslrootcert=''", "sslrootcert is empty"),
        ("sslmode=disable sslrootcert=/ca.pem", "contradicts"),
        ("sslmode=disable sslrootcert=system", "contradicts"),
        (
            "sslmode=disable sslcert=/c.pem sslkey=/k.pem",
            "contradicts",
        ),
        ("sslcert=/c.pem", "set together"),
        ("hostaddr=127.0.0.1,127.0.0.2", "different numbers"),
        ("host=/tmp hostaddr=127.0.0.1", "socket"),
        ("host=", "neither a name nor an address"),
    ] {
        let built =
            PoolConfig::parse(&format!("host=db {options}")).and_then(|config| config.build());
        let error = built
            .err()
            .unwrap_or_else(|| panic!("{options} is accepted"));
        assert!(error.to_string().contains(reason), "{options}: {error}");
    }
    assert!(
        PoolConfig::parse("user=ann")
            .unwrap_err()
            .to_string()
            .contains("host")
    );
}

/// Goal: `verify-ca` also uses the authority of `PoolConfig::ca`.
#[tokio::test]
async fn verify_ca_uses_the_authority_of_the_settings() {
    let server = start(Validity::Now, None);
    let connection = format!(
        "host={} user=postgres dbname=postgres sslmode=verify-ca",
        server.address
    );
    let with = |authority: &Authority| {
        PoolConfig::parse(&connection).and_then(|config| config.ca(authority.ca())?.build())
    };
    let client = with(&server.authority).unwrap().get().await.unwrap();
    let sql = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    assert!(client.query_one(sql, &[]).await.unwrap().get::<_, bool>(0));
    let unrelated = Authority::create().unwrap();
    let error = with(&unrelated).unwrap().get().await.err().unwrap();
    assert!(chain(&error).contains(UNKNOWN), "{error}");
}

#[test]
fn unusable_file_is_named_with_the_reason() {
    let authority = Authority::create().unwrap();
    let (one, two) = (
        authority.client("one").unwrap(),
        authority.client("two").unwrap(),
    );
    let nonsense = authority.dir().join("nonsense.pem");
    fs::write(&nonsense, "s3cret").unwrap();
    let certificate = one.certificate.display();
    for (options, file, reason) in [
        (
            "sslrootcert=/none.pem".to_owned(),
            "/none.pem",
            "No such file",
        ),
        (
            format!("sslrootcert={}", nonsense.display()),
            "nonsense.pem",
            "no certificate",
        ),
        (
            format!("sslcert={certificate} sslkey=/none.key"),
            "/none.key",
            "No such file",
        ),
        (
            format!("sslcert={certificate} sslkey={}", nonsense.display()),
            "nonsense.pem",
            "no private key",
        ),
        (
            format!("sslcert={certificate} sslkey={}", two.key.display()),
            "two-Now.key.pem",
            "cannot be used",
        ),
    ] {
        let error = PoolConfig::parse(&format!("host=db {options}"))
            .unwrap()
            .build();
        let error = error
            .err()
            .unwrap_or_else(|| panic!("{options} is accepted"))
            .to_string();
        assert!(
            error.contains(file) && error.contains(reason),
            "{options}: {error}"
        );
        assert!(!error.contains("s3cret"), "{error}");
    }
}

/// Goal: when a future is dropped, its statement is cancelled over TLS. The cancel request contains
/// the secret of the session, so it must be encrypted.
#[tokio::test]
async fn statement_of_a_dropped_future_is_cancelled_over_tls() {
    /// The first eight bytes that a client sends to request TLS: a length and a code.
    const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
    let server = start(Validity::Now, None);
    server
        .cluster
        .psql("postgres", "CREATE EXTENSION idem")
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (target, first_bytes) = ((server.address, 5432), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&first_bytes);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let seen = Arc::clone(&seen);
            tokio::spawn(async move {
                let mut first = [0; 8];
                client.read_exact(&mut first).await.unwrap();
                seen.lock().unwrap().push(first);
                let mut server = TcpStream::connect(target).await.unwrap();
                server.write_all(&first).await.unwrap();
                let _ = copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    let connection = format!(
        "host=db.test hostaddr=127.0.0.1 port={port} user=postgres dbname=postgres {}",
        server.ca()
    );
    let pool = PoolConfig::parse(&connection).unwrap().build().unwrap();
    let sleeping = || {
        let count = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        server
            .cluster
            .psql("postgres", count)
            .unwrap()
            .trim()
            .to_owned()
    };
    let message = Message::new("tls", "{}").with_message_id("m-1");
    let handler = async |tx: Tx, _: Message| -> Handled {
        tx.batch_execute("SELECT pg_sleep(600)").await?;
        Ok(vec![])
    };
    let idem = Idem::new();
    tokio::select! {
        ended = idem.process(&pool, &message, handler) => panic!("did not wait: {ended:?}"),
        () = until("the statement runs", async || sleeping() == "1") => {}
    }
    until("the server has ended the statement", async || {
        sleeping() == "0"
    })
    .await;
    let first_bytes = first_bytes.lock().unwrap();
    assert!(
        first_bytes.len() >= 2 && first_bytes.iter().all(|first| *first == SSL_REQUEST),
        "{first_bytes:?}"
    );
}
