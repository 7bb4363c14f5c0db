//! Tests that all effects of a publisher share one connection, also when some effects fail or are
//! dropped.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt, future::join_all};
use idem_brokers::RabbitMq;
use idem_rabbitmq::{RabbitMqConfig, RabbitMqPublisher};
use idem_runtime::{PublishError, Publisher};
use idem_testkit::{
    polls::{Moment, poll_times},
    until,
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    select,
    sync::watch,
    task::{block_in_place, yield_now},
    time::sleep,
};

use crate::{
    plain,
    rabbitmq::{declare_with, shared},
};

/// Starts a proxy that counts connections. Returns its URL and the counter.
async fn counted(url: &str) -> (String, Arc<AtomicUsize>) {
    let server = url
        .rsplit_once('@')
        .unwrap()
        .1
        .trim_end_matches("/%2f")
        .to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let line = url.replace(&server, &listener.local_addr().unwrap().to_string());
    let count = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((mut ours, _)) = listener.accept().await {
            counting.fetch_add(1, Ordering::SeqCst);
            let server = server.clone();
            tokio::spawn(async move {
                if let Ok(mut theirs) = TcpStream::connect(server).await {
                    let _ = copy_bidirectional(&mut ours, &mut theirs).await;
                }
            });
        }
    });
    (line, count)
}

/// When a relay drops an effect while its channel is being opened, other effects keep their
/// connection.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_publish_keeps_the_shared_connection() {
    let url = shared();
    declare_with(&url, "one-connection", &[]).await;
    let (line, connections) = counted(&url).await;
    let publisher = RabbitMqPublisher::new(RabbitMqConfig::new(line));
    publisher
        .publish(&plain("one-connection", "first"))
        .await
        .unwrap();
    for (polls, moment) in
        (1..20).flat_map(|polls| [(polls, Moment::AtOnce), (polls, Moment::WhenWoken)])
    {
        let effect = plain("one-connection", "under way");
        let mut under_way = Box::pin(publisher.publish(&effect));
        // The first effect now uses the idle channel, so the next effect needs a second channel.
        let confirmed = under_way.as_mut().now_or_never();
        assert!(confirmed.is_none(), "{confirmed:?}");
        let dropped = plain("one-connection", "dropped");
        let published = poll_times(publisher.publish(&dropped), polls, moment).await;
        under_way.await.unwrap();
        if published.is_some() {
            break;
        }
        yield_now().await;
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

/// When a queue confirms nothing, the publisher checks whether the broker still responds. All these
/// checks share one channel, also when the effects time out at different times.
#[tokio::test(flavor = "multi_thread")]
async fn unconfirmed_effects_share_one_broker_check() {
    const EFFECTS: usize = 12;
    const STAGGER: Duration = Duration::from_millis(50);
    let server = RabbitMq::start().unwrap();
    let url = server.url();
    declare_with(&url, "mute", &[]).await;
    let set_queue_process = |what: &str| {
        let script = format!(
            "{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"/\">>, queue, <<\"mute\">>)), \
             sys:{what}(amqqueue:get_pid(Q))."
        );
        block_in_place(|| server.control(&["eval", &script]).unwrap());
    };
    let publisher = RabbitMqPublisher::new(RabbitMqConfig {
        timeout_s: 2,
        ..RabbitMqConfig::new(&url)
    });
    set_queue_process("suspend");
    let effects: Vec<_> = (0..EFFECTS)
        .map(|number| plain("mute", &number.to_string()))
        .collect();
    let publisher = &publisher;
    let published = join_all((0..).zip(&effects).map(|(number, effect)| async move {
        // This sleep waits for no state. It makes the effects start, and time out, one after the
        // other.
        sleep(number * STAGGER).await;
        publisher.publish(effect).await
    }))
    .await;
    for result in published {
        assert!(
            matches!(result, Err(PublishError::TopicUnavailable(_))),
            "{result:?}"
        );
    }
    let channels = || {
        let listed = block_in_place(|| {
            server.control(&["-q", "list_channels", "pid", "--no-table-headers"])
        })
        .unwrap();
        listed.lines().filter(|line| line.starts_with('<')).count()
    };
    until("the channels of the effects are closed", async || {
        channels() <= 2
    })
    .await;
    set_queue_process("resume");
    tokio::time::timeout(
        Duration::from_secs(60),
        publisher.publish(&plain("mute", "after")),
    )
    .await
    .unwrap()
    .unwrap();
}

/// Starts a proxy that goes silent when the returned sender is used: existing connections stay open
/// but forward nothing. Connections that are opened later work.
async fn silenced(url: &str) -> (String, watch::Sender<()>) {
    let server = url
        .rsplit_once('@')
        .unwrap()
        .1
        .trim_end_matches("/%2f")
        .to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let line = url.replace(&server, &listener.local_addr().unwrap().to_string());
    let silence = watch::Sender::new(());
    let silences = silence.clone();
    tokio::spawn(async move {
        while let Ok((mut ours, _)) = listener.accept().await {
            let (server, mut silenced) = (server.clone(), silences.subscribe());
            tokio::spawn(async move {
                let mut theirs = TcpStream::connect(server).await.unwrap();
                select! {
                    _ = copy_bidirectional(&mut ours, &mut theirs) => {}
                    _ = silenced.changed() => std::future::pending().await,
                }
            });
        }
    });
    (line, silence)
}

/// I4: when a firewall drops the packets of a connection, a publisher with a short time limit opens
/// a new connection after the time limit. The heartbeat of the server would detect the loss only
/// after a minute.
#[tokio::test(flavor = "multi_thread")]
async fn i4_silent_connection_is_left_after_the_timeout() {
    let url = shared();
    declare_with(&url, "silent-line", &[]).await;
    let (line, silence) = silenced(&url).await;
    let publisher = RabbitMqPublisher::new(RabbitMqConfig {
        timeout_s: 4,
        ..RabbitMqConfig::new(line)
    });
    publisher
        .publish(&plain("silent-line", "before"))
        .await
        .unwrap();
    silence.send_replace(());
    let after = plain("silent-line", "after");
    let mut attempts = 1;
    while let Err(error) = publisher.publish(&after).await {
        assert!(matches!(error, PublishError::Unavailable(_)), "{error}");
        assert!(
            attempts < 5,
            "the publisher still uses the silent connection: {error}"
        );
        attempts += 1;
    }
}
