//! The cluster that the tests of one binary share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, ensure};
use idem_cluster::{Cluster, Install};

static SHARED: Mutex<Option<Arc<Cluster>>> = Mutex::new(None);
static FAILED: AtomicBool = AtomicBool::new(false);

/// Returns the shared cluster. The first use starts it, with the library preloaded. The cluster is
/// stopped when the process ends. When a test has failed, the log of the server is kept until the
/// next run.
///
/// # Errors
/// Fails when the cluster cannot be started. `cargo xtask build` makes the files that it needs.
pub fn shared_cluster() -> Result<Arc<Cluster>> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(cluster) = shared.as_ref() {
        return Ok(Arc::clone(cluster));
    }
    let cluster = Cluster::builder(&Install::from_env()?)
        .name("shared")
        .start()?;
    let cluster = Arc::clone(shared.insert(Arc::new(cluster)));
    // SAFETY: `stop` takes no argument, returns and does not unwind. An exit handler is needed to
    // remove the directories of the cluster, because a static is never dropped.
    let status = unsafe { libc::atexit(stop) };
    ensure!(status == 0, "atexit cannot register another function");
    Ok(cluster)
}

/// Keeps the log of the server because a test failed.
pub(super) fn keep_the_log(cluster: &Cluster) {
    FAILED.store(true, Ordering::SeqCst);
    eprintln!(
        "the server's log: {}",
        cluster.data_dir().with_file_name("log").display()
    );
}

extern "C" fn stop() {
    if FAILED.load(Ordering::SeqCst) {
        // The log must be kept, so nothing is removed here. The server ends with this process, and
        // the next cluster that starts removes the directories.
        return;
    }
    let cluster = SHARED.lock().unwrap_or_else(PoisonError::into_inner).take();
    drop(cluster);
}
