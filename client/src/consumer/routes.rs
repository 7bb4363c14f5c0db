//! Which handler takes a message, and as which destination.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::{
    CheckedHandler, Destination, Error, Handled, Handler, Idem, Message, Tx,
    lease::{self, LeasedHandler},
    policy::check_leased,
};

/// The routes in their order; the one without a condition comes last.
#[derive(Default)]
pub(super) struct Routes {
    routes: Vec<Entry>,
    last: Option<Entry>,
}

/// A route as it was given: the name is checked when the consumer begins to run.
struct Entry {
    matches: Box<dyn Fn(&Message) -> bool + Send + Sync>,
    destination: Result<Destination, Error>,
    work: Work,
}

/// What is done with the messages of a route.
pub(super) enum Work {
    /// They are handled, each in the transaction that claims it.
    Handle(Arc<dyn AnyHandler>),
    /// They are stored in the inbox, for whoever handles them later.
    Store,
    /// They are handled without a transaction, each under a lease.
    Leased(Arc<dyn AnyLeasedHandler>),
    /// They are handled without a transaction, and claimed afterwards.
    Checked(Arc<dyn AnyCheckedHandler>),
}

impl Work {
    pub(super) fn handle(handler: impl Handler) -> Self {
        Self::Handle(Arc::new(handler))
    }

    pub(super) fn leased(handler: impl LeasedHandler) -> Self {
        Self::Leased(Arc::new(handler))
    }

    pub(super) fn checked(handler: impl CheckedHandler) -> Self {
        Self::Checked(Arc::new(handler))
    }
}

impl Entry {
    fn new(matches: impl Fn(&Message) -> bool + Send + Sync + 'static, destination: &str, work: Work) -> Self {
        Self {
            matches: Box::new(matches),
            destination: Destination::new(destination),
            work,
        }
    }
}

impl Routes {
    pub(super) fn add(&mut self, matches: impl Fn(&Message) -> bool + Send + Sync + 'static, destination: &str, work: Work) {
        self.routes.push(Entry::new(matches, destination, work));
    }

    pub(super) fn set_last(&mut self, destination: &str, work: Work) {
        self.last = Some(Entry::new(|_| true, destination, work));
    }

    /// The table that messages are looked up in. [`Error::Invalid`] without any handler, for a name that is none, or for a policy
    /// that its handler cannot keep.
    pub(super) fn check(self, idem: &Idem) -> Result<Table, Error> {
        let routes = self.routes.into_iter().chain(self.last);
        let table: Vec<Route> = routes
            .enumerate()
            .map(|(number, entry)| {
                Ok(Route {
                    number,
                    matches: entry.matches,
                    destination: entry.destination?,
                    work: entry.work,
                })
            })
            .collect::<Result<_, Error>>()?;
        for route in &table {
            let policy = &idem.settings().policies.of(route.destination.as_str()).policy;
            if let Work::Leased(_) = route.work {
                check_leased(policy)
                    .map_err(|why| Error::Invalid(format!("destination {:?}: {why}", route.destination.as_str())))?;
            }
        }
        if table.is_empty() {
            return Err(Error::Invalid(
                "a consumer needs a handler: give it one with `handle` or `route`".into(),
            ));
        }
        Ok(Table(table))
    }
}

/// Routes whose names are good.
pub(super) struct Table(Vec<Route>);

impl Table {
    /// The first route that takes this message.
    pub(super) fn find(&self, message: &Message) -> Option<&Route> {
        self.0.iter().find(|route| (route.matches)(message))
    }
}

pub(super) struct Route {
    pub(super) number: usize,
    matches: Box<dyn Fn(&Message) -> bool + Send + Sync>,
    pub(super) destination: Destination,
    pub(super) work: Work,
}

/// A [`LeasedHandler`] whose type is forgotten.
pub(super) trait AnyLeasedHandler: Send + Sync {
    fn handle_boxed(&self, work: lease::Work, message: Message) -> BoxFuture<'_, Handled>;
}

impl<H: LeasedHandler> AnyLeasedHandler for H {
    fn handle_boxed(&self, work: lease::Work, message: Message) -> BoxFuture<'_, Handled> {
        Box::pin(self.handle(work, message))
    }
}

/// A [`CheckedHandler`] whose type is forgotten.
pub(super) trait AnyCheckedHandler: Send + Sync {
    fn handle_boxed(&self, message: Message) -> BoxFuture<'_, Handled>;
}

impl<H: CheckedHandler> AnyCheckedHandler for H {
    fn handle_boxed(&self, message: Message) -> BoxFuture<'_, Handled> {
        Box::pin(self.handle(message))
    }
}

/// A [`Handler`] whose type is forgotten.
pub(super) trait AnyHandler: Send + Sync {
    fn handle_boxed(&self, tx: Tx, message: Message) -> BoxFuture<'_, Handled>;
}

impl<H: Handler> AnyHandler for H {
    fn handle_boxed(&self, tx: Tx, message: Message) -> BoxFuture<'_, Handled> {
        Box::pin(self.handle(tx, message))
    }
}
