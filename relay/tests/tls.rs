//! Tests of the program over TLS. The database and the broker have certificates of an authority
//! that the test creates.

mod support;

use std::process::Command;

use idem_brokers::{Authority, Nats, Validity};
use idem_cluster::{Cluster, Install};

use support::{Running, answer, make_stream, program, stderr, stream_length};

fn install() -> Install {
    Install::from_env().expect("run cargo xtask setup first")
}

/// Goal: the program never connects in plain text to a database without TLS, unless the URL allows
/// it.
#[test]
fn database_without_tls_is_an_error_unless_tls_is_disabled() {
    let builder = Cluster::builder(&install())
        .name("idem-relay-tcp")
        .tcp()
        .unwrap();
    let cluster = builder.start().unwrap();
    cluster.psql("postgres", "CREATE EXTENSION idem").unwrap();
    let address = cluster.address().unwrap();
    let nats = Nats::start().unwrap();
    let broker = format!("--broker-url={}", nats.url());
    let check = |mode: &str| {
        let url = format!("host={address} user=postgres dbname=postgres {mode}");
        answer(program().args(["--check", "--broker=nats", &broker, "--database-url", &url]))
    };
    let refused = check("");
    assert!(
        !refused.status.success(),
        "connected in plain text: {refused:?}"
    );
    assert!(
        stderr(&refused).contains("does not support TLS"),
        "{}",
        stderr(&refused)
    );
    let plain = check("sslmode=disable");
    assert!(plain.status.success(), "{plain:?}");
}

/// Goal: the program publishes to NATS over TLS, with the authority in the settings and with the
/// authorities of the system. The test build contains two crypto providers, of which rustls selects
/// none by itself. So the program must name one, or it would panic.
#[test]
fn effects_reach_nats_over_tls() {
    let authority = Authority::create().unwrap();
    let server = authority.server(&["127.0.0.1"], Validity::Now).unwrap();
    let cluster = Cluster::builder(&install())
        .name("idem-relay")
        .start()
        .unwrap();
    cluster.psql("postgres", "CREATE EXTENSION idem").unwrap();
    let mut nats = Nats::start().unwrap();
    make_stream(&nats);
    nats.stop().unwrap();
    nats.configure(&format!(
        "tls {{ cert_file: \"{}\", key_file: \"{}\", timeout: 60 }}",
        server.certificate.display(),
        server.key.display()
    ));
    nats.start_again().unwrap();

    let url = format!("--broker-url=tls://127.0.0.1:{}", nats.port());
    let mut with_system_roots = program();
    with_system_roots
        .args(["--broker=nats", &url])
        .env("SSL_CERT_FILE", authority.ca());
    publish_one(&cluster, with_system_roots);

    let file = authority.dir().join("relay.toml");
    std::fs::write(
        &file,
        format!("[broker]\nca = \"{}\"\n", authority.ca().display()),
    )
    .unwrap();
    let mut with_ca = program();
    with_ca.args(["--broker=nats", &url, "--config"]).arg(&file);
    publish_one(&cluster, with_ca);

    nats.stop().unwrap();
    nats.configure("");
    nats.start_again().unwrap();
    assert_eq!(stream_length(&nats), 2);
}

fn publish_one(cluster: &Cluster, command: Command) {
    let relay = Running::start_command(cluster, command);
    cluster
        .psql("postgres", "SELECT idem_send('facts', '1')")
        .unwrap();
    relay.get_until("/readyz", |status, body| {
        status.contains(" 200 ") && body.contains("broker: ok")
    });
    assert_eq!(relay.terminate().code(), Some(0));
}
