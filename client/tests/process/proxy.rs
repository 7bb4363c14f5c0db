//! A proxy in front of the server. It counts round trips, can cut the connection at a COMMIT, and
//! can have the server cancel a BEGIN.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use deadpool_postgres::{Manager, Pool};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixStream},
};
use tokio_postgres::{NoTls, config::Host};

use crate::support::Database;

/// The point at which the proxy cuts the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The proxy forwards everything before COMMIT, and cuts the connection.
    BeforeCommit,
    /// The proxy forwards COMMIT, which takes effect, but does not forward the reply to it.
    AfterCommit,
}

pub struct Proxy {
    port: u16,
    database: String,
    line: Arc<Line>,
}

#[derive(Default)]
struct Line {
    turns: AtomicUsize,
    cut: Mutex<Option<Cut>>,
    /// True if the proxy accepts no connection after a cut.
    stays_cut: AtomicBool,
    is_cut: AtomicBool,
    cancels_begin: AtomicBool,
    has_cancelled_begin: AtomicBool,
}

impl Proxy {
    pub async fn to(database: &Database) -> Self {
        let config: tokio_postgres::Config = database.direct_url().parse().unwrap();
        let [Host::Unix(directory)] = config.get_hosts() else {
            panic!("the cluster does not listen on one socket");
        };
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let socket = directory.join(format!(".s.PGSQL.{port}"));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let line = Arc::new(Line::default());
        tokio::spawn(accept(listener, socket, Arc::clone(&line)));
        Self {
            port,
            database: database.name.clone(),
            line,
        }
    }

    pub fn pool(&self, size: usize) -> Pool {
        let url = format!(
            "host=127.0.0.1 port={} user=postgres dbname={}",
            self.port, self.database
        );
        let manager = Manager::new(url.parse().unwrap(), NoTls);
        Pool::builder(manager).max_size(size).build().unwrap()
    }

    /// Returns the number of round trips: the number of times that the client sent data after data
    /// of the server.
    pub fn turns(&self) -> usize {
        self.line.turns.load(Ordering::SeqCst)
    }

    pub fn cut_once(&self, cut: Cut) {
        *self.line.cut.lock().unwrap() = Some(cut);
    }

    pub fn cut_for_good(&self, cut: Cut) {
        self.line.stays_cut.store(true, Ordering::SeqCst);
        self.cut_once(cut);
    }

    /// Makes the server cancel the next [BEGIN](BEGIN). The connection survives.
    pub fn cancel_begin_once(&self) {
        self.line.cancels_begin.store(true, Ordering::SeqCst);
    }

    /// Returns whether the server has cancelled a BEGIN.
    pub fn has_cancelled_begin(&self) -> bool {
        self.line.has_cancelled_begin.load(Ordering::SeqCst)
    }

    pub fn was_cut(&self) -> bool {
        self.line.is_cut.load(Ordering::SeqCst)
    }
}

/// The BEGIN of the client's own short transactions, and of a handler in READ COMMITTED.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

/// A statement that the server cancels as it would cancel BEGIN.
const CANCELLED: &str = "SELECT pg_cancel_backend(pg_backend_pid())";

/// Returns the protocol message with this simple query.
fn simple_query(sql: &str) -> Vec<u8> {
    let length = u32::try_from(size_of::<u32>() + sql.len() + 1).unwrap();
    let mut message = vec![b'Q'];
    message.extend(length.to_be_bytes());
    message.extend(sql.as_bytes());
    message.push(0);
    message
}

/// Replaces the first BEGIN in these messages with a statement that the server cancels.
fn cancelled_begin(messages: &[u8]) -> Option<Vec<u8>> {
    let begin = simple_query(BEGIN);
    let at = find(messages, &begin)?;
    let mut replaced = messages[..at].to_vec();
    replaced.extend(simple_query(CANCELLED));
    replaced.extend(&messages[at + begin.len()..]);
    Some(replaced)
}

async fn accept(listener: TcpListener, socket: PathBuf, line: Arc<Line>) {
    while let Ok((client, _)) = listener.accept().await {
        if line.is_cut.load(Ordering::SeqCst) && line.stays_cut.load(Ordering::SeqCst) {
            continue;
        }
        tokio::spawn(pass(client, socket.clone(), Arc::clone(&line)));
    }
}

async fn pass(
    mut client: TcpStream,
    socket: impl AsRef<Path>,
    line: Arc<Line>,
) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    let mut server = UnixStream::connect(socket).await?;
    let (mut request, mut reply) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut server_has_sent = true;
    loop {
        tokio::select! {
            read = client.read(&mut request) => {
                let bytes = &request[..read?];
                if bytes.is_empty() {
                    return Ok(());
                }
                if std::mem::take(&mut server_has_sent) {
                    line.turns.fetch_add(1, Ordering::SeqCst);
                }
                if line.cancels_begin.load(Ordering::SeqCst)
                    && let Some(replaced) = cancelled_begin(bytes)
                {
                    line.cancels_begin.store(false, Ordering::SeqCst);
                    line.has_cancelled_begin.store(true, Ordering::SeqCst);
                    server.write_all(&replaced).await?;
                    continue;
                }
                let commit = find(bytes, b"COMMIT\0");
                match commit.and_then(|at| Some((at, line.cut.lock().unwrap().take()?))) {
                    None => server.write_all(bytes).await?,
                    Some((at, cut)) => {
                        line.is_cut.store(true, Ordering::SeqCst);
                        if cut == Cut::AfterCommit {
                            server.write_all(bytes).await?;
                            discard_commit_reply(&mut server).await?;
                        } else {
                            // Cut before the type and the length of the protocol message, which are
                            // in front of the text `COMMIT`.
                            server.write_all(&bytes[..at.saturating_sub(5)]).await?;
                        }
                        return Ok(());
                    }
                }
            }
            read = server.read(&mut reply) => {
                let bytes = &reply[..read?];
                if bytes.is_empty() {
                    return Ok(());
                }
                server_has_sent = true;
                client.write_all(bytes).await?;
            }
        }
    }
}

/// Reads replies of the server up to the reply to COMMIT.
async fn discard_commit_reply(server: &mut UnixStream) -> std::io::Result<()> {
    let mut replies = Vec::new();
    while find(&replies, b"COMMIT\0").is_none() {
        if server.read_buf(&mut replies).await? == 0 {
            break;
        }
    }
    Ok(())
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}
