//! Tests of brokers and proxies, with the programs of Debian's packages.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Result;
use async_nats::jetstream;
use idem_brokers::{MailSink, Nats, PgBouncer, RabbitMq};
use idem_cluster::{Cluster, Install, is_running, processes_of, wait_for};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Confirmation, Connection, ConnectionProperties};

const DEADLINE: Duration = Duration::from_secs(60);

/// Publishes `count` messages to the queue, each with a confirmation of the broker.
async fn fill_queue(url: &str, count: usize) -> Result<()> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    let mandatory = BasicPublishOptions {
        mandatory: true,
        ..BasicPublishOptions::default()
    };
    for _ in 0..count {
        let persistent = BasicProperties::default().with_delivery_mode(2);
        let confirm = channel
            .basic_publish("".into(), "kept".into(), mandatory, b"x", persistent)
            .await?;
        let confirmation = confirm.await?;
        assert!(
            matches!(confirmation, Confirmation::Ack(None)),
            "not confirmed, or not routed: {confirmation:?}"
        );
    }
    Ok(())
}

/// Declares the durable queue.
async fn declare_queue(url: &str) -> Result<()> {
    find_queue(url, QueueDeclareOptions::durable())
        .await
        .map(drop)
}

/// Returns the number of messages in the queue. Fails when the queue does not exist.
async fn count_queue(url: &str) -> Result<u32> {
    let options = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::durable()
    };
    find_queue(url, options).await
}

async fn find_queue(url: &str, options: QueueDeclareOptions) -> Result<u32> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let queue = channel
        .queue_declare("kept".into(), options, FieldTable::default())
        .await?;
    Ok(queue.message_count())
}

#[tokio::test(flavor = "multi_thread")]
async fn rabbitmq_keeps_confirmed_messages_when_killed_or_stopped() {
    let mut broker = RabbitMq::start().unwrap();
    let url = broker.url();
    declare_queue(&url).await.unwrap();
    // RabbitMQ can confirm a declaration before it is on disk. A clean stop writes the declaration
    // to disk.
    broker.stop().unwrap();
    broker.start_again().unwrap();
    fill_queue(&url, 200).await.unwrap();
    for end in [RabbitMq::kill, RabbitMq::stop] {
        end(&mut broker).unwrap();
        assert!(
            Connection::connect(&url, ConnectionProperties::default())
                .await
                .is_err()
        );
        broker.start_again().unwrap();
        assert_eq!(broker.url(), url);
        assert_eq!(count_queue(&url).await.unwrap(), 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rabbitmq_brokers_share_nothing() {
    let (mut one, other) = (RabbitMq::start().unwrap(), RabbitMq::start().unwrap());
    declare_queue(&one.url()).await.unwrap();
    fill_queue(&one.url(), 1).await.unwrap();
    declare_queue(&other.url()).await.unwrap();
    assert_eq!(count_queue(&other.url()).await.unwrap(), 0);
    one.kill().unwrap();
    assert_eq!(count_queue(&other.url()).await.unwrap(), 0);
}

/// Sends these lines to a mail server one by one, and returns its reply to each line.
fn speak_smtp(sink: &MailSink, lines: &[&str]) -> Result<Vec<String>> {
    let mut stream = TcpStream::connect(sink.address())?;
    stream.set_read_timeout(Some(DEADLINE))?;
    let mut replies = BufReader::new(stream.try_clone()?).lines();
    replies.next().transpose()?;
    let mut all = Vec::new();
    for line in lines {
        stream.write_all(format!("{line}\r\n").as_bytes())?;
        all.extend(replies.next().transpose()?);
    }
    Ok(all)
}

#[test]
fn accepted_mail_is_stored_and_survives_a_kill() {
    let mut sink = MailSink::start().unwrap();
    assert_eq!(sink.mails().unwrap(), [""; 0]);
    let envelope = [
        "HELO shop",
        "MAIL FROM:<shop@example.org>",
        "RCPT TO:<me@example.org>",
        "DATA",
    ];
    let text = "Subject: one\r\n\r\nhello\r\n.";
    let replies = speak_smtp(&sink, &[envelope.as_slice(), &[text]].concat()).unwrap();
    assert!(replies.last().unwrap().starts_with("250"), "{replies:?}");
    // A client that disconnects before it sends the text of the mail has sent no mail.
    speak_smtp(&sink, &envelope).unwrap();

    sink.kill().unwrap();
    sink.start_again().unwrap();
    let mails = sink.mails().unwrap();
    assert_eq!(mails.len(), 1);
    assert!(
        mails[0].contains("Subject: one\n") && mails[0].ends_with("hello\n"),
        "{mails:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_keeps_confirmed_messages_and_shares_nothing() {
    let (mut one, other) = (Nats::start().unwrap(), Nats::start().unwrap());
    let url = one.url();
    let context = jetstream::new(async_nats::connect(&url).await.unwrap());
    let config = jetstream::stream::Config {
        name: "kept".into(),
        subjects: vec!["kept.>".into()],
        ..Default::default()
    };
    context.create_stream(config).await.unwrap();
    for _ in 0..200 {
        context
            .publish("kept.x", "x".into())
            .await
            .unwrap()
            .await
            .unwrap();
    }
    one.kill().unwrap();
    assert!(async_nats::connect(&url).await.is_err());
    let elsewhere = jetstream::new(async_nats::connect(other.url()).await.unwrap());
    assert!(elsewhere.get_stream("kept").await.is_err());

    for stop in [Nats::stop, Nats::kill] {
        one.start_again().unwrap();
        let context = jetstream::new(async_nats::connect(&url).await.unwrap());
        let stream = context.get_stream("kept").await.unwrap();
        assert_eq!(stream.cached_info().state.messages, 200);
        stop(&mut one).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pgbouncer_assigns_a_session_for_one_transaction() {
    let install = Install::from_env().unwrap();
    let cluster = Cluster::builder(&install)
        .name("pooled")
        .preload(false)
        .setting("shared_buffers", "16MB")
        .start()
        .unwrap();
    let mut proxy = PgBouncer::start(&cluster, "template1").unwrap();
    for _ in 0..2 {
        let (one, two) = (connect(&proxy).await, connect(&proxy).await);
        // The sessions of a killed proxy may exist for a moment longer, so this test compares
        // sessions and does not count them.
        let mut sessions = BTreeSet::new();
        for client in [&one, &two, &one, &two] {
            let row = client
                .simple_query("SELECT pg_backend_pid()")
                .await
                .unwrap();
            let tokio_postgres::SimpleQueryMessage::Row(row) = &row[1] else {
                panic!("{row:?}")
            };
            sessions.insert(row.get(0).unwrap().to_owned());
        }
        assert_eq!(sessions.len(), 1, "two idle clients share one session");
        proxy.kill().unwrap();
        proxy.start_again().unwrap();
    }
}

async fn connect(proxy: &PgBouncer) -> tokio_postgres::Client {
    let (client, connection) =
        tokio_postgres::connect(&proxy.connection_string(), tokio_postgres::NoTls)
            .await
            .unwrap();
    tokio::spawn(connection);
    client
}

#[test]
fn dropped_server_leaves_no_process() {
    let (rabbitmq, nats) = (RabbitMq::start().unwrap(), Nats::start().unwrap());
    let pids = [rabbitmq.pid().unwrap(), nats.pid().unwrap()];
    let all = processes_of(&pids).unwrap();
    assert!(all.len() > pids.len(), "RabbitMQ has helper processes");
    drop((rabbitmq, nats));
    let left: Vec<_> = all.into_iter().filter(|pid| is_running(*pid)).collect();
    assert_eq!(left, [0; 0]);
}

/// The test cannot kill its own process, so the owner is a child process: the same binary, which
/// runs only this test and has a variable set.
#[test]
fn servers_do_not_outlive_their_killed_owner() {
    const ROLE: &str = "IDEM_BROKERS_TEST_OWNER";
    if std::env::var_os(ROLE).is_some() {
        let (rabbitmq, nats) = (RabbitMq::start().unwrap(), Nats::start().unwrap());
        println!(
            "SERVERS {} {}",
            rabbitmq.pid().unwrap(),
            nats.pid().unwrap()
        );
        loop {
            std::thread::park();
        }
    }

    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "servers_do_not_outlive_their_killed_owner",
            "--nocapture",
        ])
        .env(ROLE, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(owner.stdout.take().unwrap()));
    let line = lines
        .map(Result::unwrap)
        .find(|line| line.contains("SERVERS "))
        .unwrap();
    let names = line.split_once("SERVERS ").unwrap().1;
    let mut pids: Vec<u32> = names.split(' ').map(|pid| pid.parse().unwrap()).collect();
    // Erlang's name server and all other processes of the owner must end as well.
    pids.extend(processes_of(&[owner.id()]).unwrap());

    owner.kill().unwrap();
    owner.wait().unwrap();
    let ended = wait_for("the servers end", DEADLINE, || {
        Ok(pids.iter().all(|pid| !is_running(*pid)))
    });
    pids.retain(|pid| is_running(*pid));
    assert_eq!(pids, [0; 0], "{ended:?}");
}
