//! The program as an operator meets it: a real database, a real broker, signals, HTTP.

mod support;

use idem_brokers::Nats;
use idem_cluster::{Cluster, Install};
use support::{Running, answer, make_stream, program, stderr, stream_length};

fn server() -> Cluster {
    let install = Install::from_env().expect("cargo xtask setup makes the install");
    let cluster = Cluster::builder(&install).name("idem-relay").start().unwrap();
    cluster.psql("postgres", "CREATE EXTENSION idem").unwrap();
    cluster
}

fn is_200(status: &str, _: &str) -> bool {
    status.contains(" 200 ")
}

#[test]
fn the_outbox_reaches_the_broker_and_a_signal_ends_it_in_order() {
    let cluster = server();
    let mut nats = Nats::start().unwrap();
    make_stream(&nats);
    let relay = Running::start(&cluster, "nats", &nats.url());
    relay.get_until("/livez", is_200);
    let ready = relay.get_until("/readyz", is_200);
    assert_eq!(ready, "database: ok\nbroker: not asked yet\n");

    let send = "SELECT count(idem_send('facts', to_jsonb(n))) FROM generate_series(1, 200) n";
    assert_eq!(cluster.psql("postgres", send).unwrap().trim(), "200");
    let published = |body: &str| sum_of(body, "idem_relay_published_total", r#"outcome="published""#);
    relay.get_until("/metrics", |_, body| published(body) >= 200.0);
    assert_eq!(stream_length(&nats), 200);

    // The broker goes away and comes again: not ready, then ready, and nothing is lost.
    nats.kill().unwrap();
    cluster.psql("postgres", send).unwrap();
    relay.get_until("/readyz", |status, body| {
        status.contains(" 503 ") && body.contains("broker: away")
    });
    relay.get_until("/livez", is_200);
    nats.start_again().unwrap();
    relay.get_until("/readyz", is_200);
    relay.get_until("/metrics", |_, body| published(body) >= 400.0);
    assert_eq!(
        stream_length(&nats),
        400,
        "a message id that came twice is dropped by the stream"
    );

    assert_eq!(relay.terminate().code(), Some(0));
    let lag = "SELECT sum(lag_messages) FROM idem.relays";
    assert_eq!(
        cluster.psql("postgres", lag).unwrap().trim(),
        "0",
        "what was published is acknowledged"
    );
}

/// The sum of all lines of one metric with this label.
fn sum_of(body: &str, name: &str, label: &str) -> f64 {
    body.lines()
        .filter(|line| line.starts_with(name) && line.contains(label))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

#[test]
fn wrong_settings_are_told_before_anything_is_begun() {
    let output = answer(&mut program());
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(stderr(&output).contains("--database-url"), "{}", stderr(&output));

    let output = answer(program().args(["--broker", "pigeon"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("rabbitmq"), "{}", stderr(&output));

    let output = answer(program().args(["--config", "/does/not/exist"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("/does/not/exist"), "{}", stderr(&output));
}

#[test]
fn a_database_that_refuses_has_an_exit_code_of_its_own() {
    let cluster = server();
    let ask = |arguments: &[&str], database: &str| {
        answer(
            program()
                .args(["--check", "--broker", "nats", "--broker-url", "nats://127.0.0.1:1"])
                .args(["--database-url", &cluster.connection_string(database)])
                .args(arguments),
        )
    };
    let fine = ask(&[], "postgres");
    assert!(fine.status.success(), "{fine:?}");
    assert!(String::from_utf8_lossy(&fine.stdout).contains("1 partition"), "{fine:?}");

    let no_relay = ask(&["--relay", "nobody"], "postgres");
    assert_eq!(no_relay.status.code(), Some(3), "{no_relay:?}");
    assert!(stderr(&no_relay).contains("idem_create_relay"), "{}", stderr(&no_relay));

    let no_extension = ask(&[], "template1");
    assert_eq!(no_extension.status.code(), Some(3), "{no_extension:?}");

    // Not only when checking.
    let run = answer(
        program()
            .args(["--broker", "nats", "--broker-url", "nats://127.0.0.1:1", "--relay", "nobody"])
            .args([
                "--listen",
                "127.0.0.1:0",
                "--database-url",
                &cluster.connection_string("postgres"),
            ]),
    );
    assert_eq!(run.status.code(), Some(3), "{run:?}");
}

#[test]
fn help_says_what_it_does_what_the_role_needs_and_how_it_ends() {
    let output = answer(program().arg("--help"));
    let help = String::from_utf8(output.stdout).unwrap();
    for needed in [
        "Publishes the outbox",
        "--database-url",
        "IDEM_RELAY_DATABASE_URL",
        "idem_grant('relay', 'relay')",
        "Exit codes",
        "/readyz",
    ] {
        assert!(help.contains(needed), "{needed} is missing:\n{help}");
    }
}
