//! PostgreSQL.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem_brokers::{Authority, Validity};
use idem_client::{Handled, Idem, Message, PoolConfig, Tx};
use idem_cluster::{Cluster, Install};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::{EXPIRED, OTHER_HOST, UNKNOWN, chain, until};

/// A server over TCP whose certificate is for `db.test`, and its authority.
struct Server {
    authority: Authority,
    cluster: Cluster,
    address: Ipv4Addr,
}

fn install() -> Install {
    Install::from_env().expect("cargo xtask setup makes the install")
}

fn start(validity: Validity, hba: Option<&str>) -> Server {
    let authority = Authority::create().unwrap();
    let server = authority.server(&["db.test"], validity).unwrap();
    let builder = Cluster::builder(&install())
        .name("tls")
        .preload(false)
        .tcp()
        .unwrap();
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

    async fn ask(&self, host: &str, options: &str) -> Result<bool, String> {
        let address = self.address;
        ask(&format!(
            "host={host} hostaddr={address} user=postgres dbname=postgres {options}"
        ))
        .await
    }
}

/// Whether the connection uses TLS, or why there is none.
async fn ask(connection: &str) -> Result<bool, String> {
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

fn assert_fails(asked: Result<bool, String>, reason: &str) {
    let error = asked.expect_err(reason);
    assert!(error.contains(reason), "{reason}: {error}");
}

/// Goal: without `sslmode` a connection over TCP uses TLS and verifies the server.
#[tokio::test]
async fn tcp_without_sslmode_verifies_everything() {
    let server = start(Validity::Now, None);
    let ca = server.ca();
    for mode in [
        "",
        "sslmode=verify-full",
        "sslmode=require",
        "sslmode=verify-ca",
    ] {
        assert_eq!(
            server.ask("db.test", &format!("{ca} {mode}")).await,
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
    assert_eq!(ask(&url).await, Ok(true));

    let stranger = Authority::create().unwrap();
    let wrong = format!("sslrootcert={}", stranger.ca().display());
    for mode in ["", "sslmode=verify-full", "sslmode=require"] {
        assert_fails(
            server.ask("db.test", &format!("{wrong} {mode}")).await,
            UNKNOWN,
        );
        assert_fails(
            server.ask("other.test", &format!("{ca} {mode}")).await,
            OTHER_HOST,
        );
        assert_fails(server.ask("db.test", mode).await, UNKNOWN);
    }
    assert_fails(
        server
            .ask("db.test", &format!("{wrong} sslmode=verify-ca"))
            .await,
        UNKNOWN,
    );
    assert_eq!(
        server
            .ask("other.test", &format!("{ca} sslmode=verify-ca"))
            .await,
        Ok(true)
    );
    assert_eq!(server.ask("db.test", "sslmode=disable").await, Ok(false));
}

#[tokio::test]
async fn expired_certificate_of_the_server_is_an_error() {
    let server = start(Validity::Expired, None);
    let ca = server.ca();
    assert_fails(server.ask("db.test", &ca).await, EXPIRED);
    assert_fails(
        server
            .ask("db.test", &format!("{ca} sslmode=verify-ca"))
            .await,
        EXPIRED,
    );
}

/// Goal: an address without a name is verified as an address, and never reached in plaintext.
#[tokio::test]
async fn hostaddr_alone_has_to_be_in_the_certificate() {
    let server = start(Validity::Now, None);
    let connection = format!(
        "hostaddr={} user=postgres dbname=postgres {}",
        server.address,
        server.ca()
    );
    assert_fails(ask(&connection).await, OTHER_HOST);
    assert_eq!(
        ask(&format!("{connection} sslmode=verify-ca")).await,
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
            .ask("db.test", &with(&server.authority, "postgres"))
            .await,
        Ok(true)
    );
    assert_fails(server.ask("db.test", &ca).await, "28000");
    assert_fails(
        server.ask("db.test", &with(&server.authority, "ann")).await,
        "28000",
    );
    let stranger = Authority::create().unwrap();
    assert!(
        server
            .ask("db.test", &with(&stranger, "postgres"))
            .await
            .is_err()
    );
}

/// Goal: a server that offers no TLS is an error for every mode that asks for TLS, and a socket
/// needs none. Each host of a list keeps its rule.
#[tokio::test]
async fn server_without_tls_is_reached_over_its_socket_alone() {
    let builder = Cluster::builder(&install())
        .name("no-tls")
        .preload(false)
        .tcp()
        .unwrap();
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
                ask(&to(&hosts, options)).await,
                "server does not support TLS",
            );
        }
        assert_eq!(ask(&to(&socket, options)).await, Ok(false), "{options}");
        assert_eq!(
            ask(&to(&format!("{address},{socket}"), options)).await,
            Ok(false)
        );
    }
    assert_eq!(
        ask(&to(&address.to_string(), "sslmode=disable")).await,
        Ok(false)
    );
}

/// Goal: a TCP host beside a socket uses TLS.
#[tokio::test]
async fn tcp_host_beside_a_socket_uses_tls() {
    let server = start(Validity::Now, None);
    let hosts = format!("/nonexistent,{}", server.address);
    let connection = format!("host={hosts} user=postgres dbname=postgres {}", server.ca());
    assert_fails(ask(&connection).await, OTHER_HOST);
    assert_eq!(
        ask(&format!("{connection} sslmode=verify-ca")).await,
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

/// Accepts connections and never sends anything.
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

/// Goal: a server that accepts connections and is silent does not keep the client from the next
/// one.
#[tokio::test]
async fn silent_host_is_followed_by_the_next() {
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
    assert_eq!(ask(&connection).await, Ok(true));
    // In either order.
    for _ in 0..4 {
        assert_eq!(
            ask(&format!("{connection} load_balance_hosts=random")).await,
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
            ask(&format!("{connection} {mode}")).await,
            "the server did not accept the connection within 1s",
        );
    }
}

/// Goal: `connect_timeout` is honoured when it is longer than the default.
#[tokio::test]
async fn connect_timeout_beyond_the_default_is_honoured() {
    let server = start(Validity::Now, None);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let target = (server.address, 5432);
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        // Longer than the default of 10 s: what passes is the time that is tested.
        tokio::time::sleep(Duration::from_secs(12)).await;
        let mut server = TcpStream::connect(target).await.unwrap();
        let _ = copy_bidirectional(&mut client, &mut server).await;
    });
    let connection = format!(
        "host=127.0.0.1 port={port} user=postgres dbname=postgres connect_timeout=60 sslmode=verify-ca {}",
        server.ca()
    );
    assert_eq!(ask(&connection).await, Ok(true));
}

#[test]
fn settings_that_contradict_each_other_are_errors() {
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
        ("sslcert=/c.pem", "go together"),
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

/// Goal: `verify-ca` takes its authority from the settings too.
#[tokio::test]
async fn verify_ca_takes_the_authority_of_the_settings() {
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
    let stranger = Authority::create().unwrap();
    let error = with(&stranger).unwrap().get().await.err().unwrap();
    assert!(chain(&error).contains(UNKNOWN), "{error}");
}

#[test]
fn file_that_cannot_be_used_is_named_with_the_reason() {
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

/// Goal: the statement of a dropped future is cancelled over TLS. The secret of a session travels
/// with the request.
#[tokio::test]
async fn statement_of_a_dropped_future_is_cancelled_over_tls() {
    /// The first eight bytes of a client that asks for TLS: a length and a code.
    const TLS_PLEASE: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
    let server = start(Validity::Now, None);
    server
        .cluster
        .psql("postgres", "CREATE EXTENSION idem")
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (target, firsts) = ((server.address, 5432), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&firsts);
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
        ended = idem.process(&pool, &message, handler) => panic!("it was to sleep: {ended:?}"),
        () = until("the statement runs", || sleeping() == "1") => {}
    }
    until("the server has ended the statement", || sleeping() == "0").await;
    let firsts = firsts.lock().unwrap();
    assert!(
        firsts.len() >= 2 && firsts.iter().all(|first| *first == TLS_PLEASE),
        "{firsts:?}"
    );
}
