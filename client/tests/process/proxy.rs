//! A line to the server that counts who speaks, and can be cut at a COMMIT.

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

/// When the line is cut, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// All that is before COMMIT passes.
    BeforeCommit,
    /// COMMIT passes and takes effect, its answer does not pass.
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
    /// Whether nobody gets through after a cut.
    stays_cut: AtomicBool,
    is_cut: AtomicBool,
}

impl Proxy {
    pub async fn to(database: &Database) -> Self {
        let config: tokio_postgres::Config = database.direct_url().parse().unwrap();
        let [Host::Unix(directory)] = config.get_hosts() else {
            panic!("the cluster listens on a socket");
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

    /// How often the client has spoken after the server: round trips.
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

    pub fn was_cut(&self) -> bool {
        self.line.is_cut.load(Ordering::SeqCst)
    }
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
    let (mut asked, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut server_spoke = true;
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let bytes = &asked[..read?];
                if bytes.is_empty() {
                    return Ok(());
                }
                if std::mem::take(&mut server_spoke) {
                    line.turns.fetch_add(1, Ordering::SeqCst);
                }
                let commit = find(bytes, b"COMMIT\0");
                match commit.and_then(|at| Some((at, line.cut.lock().unwrap().take()?))) {
                    None => server.write_all(bytes).await?,
                    Some((at, cut)) => {
                        line.is_cut.store(true, Ordering::SeqCst);
                        if cut == Cut::AfterCommit {
                            server.write_all(bytes).await?;
                            swallow_commit(&mut server).await?;
                        } else {
                            // A message begins with its type and its length.
                            server.write_all(&bytes[..at.saturating_sub(5)]).await?;
                        }
                        return Ok(());
                    }
                }
            }
            read = server.read(&mut answered) => {
                let bytes = &answered[..read?];
                if bytes.is_empty() {
                    return Ok(());
                }
                server_spoke = true;
                client.write_all(bytes).await?;
            }
        }
    }
}

/// Reads answers up to that of COMMIT.
async fn swallow_commit(server: &mut UnixStream) -> std::io::Result<()> {
    let mut answers = Vec::new();
    while find(&answers, b"COMMIT\0").is_none() {
        if server.read_buf(&mut answers).await? == 0 {
            break;
        }
    }
    Ok(())
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}
