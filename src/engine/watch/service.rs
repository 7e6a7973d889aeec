//! Servers, pools, listeners and the engine out of service and back, and the end of their open connections.

use std::fmt;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use splice::difference::Difference;
use splice::limit::Limited;
use splice::standby::{MOST_CLOSINGS, Service};

use super::{SILENCE, Watch};
use crate::commands::Closing;
use crate::config::{Config, Standing};

/// What an operator speaks of. The name is one of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject<'a> {
    /// A server.
    Server(&'a str),
    /// All servers of a pool.
    Pool(&'a str),
    /// A listener.
    Listener(&'a str),
    /// All of the engine.
    Engine,
}

impl<'a> Subject<'a> {
    /// By the words that [`fmt::Display`] writes.
    ///
    /// # Errors
    /// A sentence: that is none of these.
    pub fn new(what: &str, name: &'a str) -> Result<Self, String> {
        match what {
            "server" => Ok(Self::Server(name)),
            "pool" => Ok(Self::Pool(name)),
            "listener" => Ok(Self::Listener(name)),
            "engine" if name.is_empty() => Ok(Self::Engine),
            "engine" => Err("the engine has no name here".to_owned()),
            _ => Err(format!("{what} is none of server, pool, listener, engine")),
        }
    }
}

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(name) => write!(f, "server {name}"),
            Self::Pool(name) => write!(f, "pool {name}"),
            Self::Listener(name) => write!(f, "listener {name}"),
            Self::Engine => f.write_str("engine"),
        }
    }
}

/// What is in service and out in one version of the configuration, by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Services {
    servers: Vec<Service>,
    listeners: Vec<Service>,
    engine: Service,
}

impl Services {
    /// All of it is in service.
    pub fn all_in(config: &Config) -> Self {
        Self::of(config, &[])
    }

    /// As these say in their order; what none of them names is in service.
    pub fn of(config: &Config, all: &[(Subject<'_>, Service)]) -> Self {
        let mut services = Self {
            servers: vec![Service::In; config.servers().len()],
            listeners: vec![Service::In; config.listeners().len()],
            engine: Service::In,
        };
        for (subject, service) in all {
            match numbers(config, *subject) {
                Ok(Numbers::Servers(of_it)) => {
                    of_it
                        .iter()
                        .for_each(|server| services.servers[usize::from(*server)] = *service);
                }
                Ok(Numbers::Listener(listener)) => services.listeners[usize::from(listener)] = *service,
                Ok(Numbers::Engine) => services.engine = *service,
                // DNS may name it again.
                Err(_) => {}
            }
        }
        services
    }
}

/// What was said of servers and listeners that come back to the file while connections name them.
#[derive(Debug, Default)]
pub(in crate::engine) struct CameBack {
    servers: Vec<(u16, Service)>,
    listeners: Vec<(u16, Service)>,
}

/// What a subject is by its numbers.
enum Numbers {
    Servers(Vec<u16>),
    Listener(u16),
    Engine,
}

/// For how long the number of a closing is not another's, beyond its time: cores look through all places before and after.
const LINGERS: Duration = Duration::from_secs(60);

/// When the numbers of closings are free again, by number less one.
#[derive(Debug, Default)]
pub(super) struct ClosingNumbers(Vec<Instant>);

impl ClosingNumbers {
    /// One that nobody has, for so long.
    fn take(&mut self, now: Instant, over: Duration) -> Option<u8> {
        let until = now.checked_add(over + LINGERS)?;
        let place = match self.0.iter().position(|until| *until <= now) {
            Some(free) => free,
            None if self.0.len() < usize::from(MOST_CLOSINGS) => {
                self.0.push(now);
                self.0.len() - 1
            }
            None => return None,
        };
        self.0[place] = until;
        u8::try_from(place + 1).ok()
    }
}

impl Watch {
    /// Takes something out of service, or back: out of service it gets no new connection, and open ones go on.
    ///
    /// # Errors
    /// A sentence: there is nothing of that name.
    pub fn set_service(&self, subject: Subject<'_>, service: Service) -> Result<(), String> {
        let standby = &self.shared.standby;
        match numbers(&self.config(), subject)? {
            Numbers::Servers(servers) => servers
                .into_iter()
                .for_each(|server| standby.set_server(server, service, self.now())),
            Numbers::Listener(listener) => standby.set_listener(listener, service),
            Numbers::Engine => standby.set_engine(service),
        }
        Ok(())
    }

    /// Whether there is something of this name.
    ///
    /// # Errors
    /// A sentence: there is not.
    pub fn find(&self, subject: Subject<'_>) -> Result<(), String> {
        numbers(&self.config(), subject).map(drop)
    }

    /// Has all servers and listeners of the file and the engine in service or out, as these say in their order. What none of them names
    /// is in service.
    pub fn set_services(&self, all: &[(Subject<'_>, Service)]) {
        let config = self.config();
        let services = Services::of(&config, all);
        let standby = &self.shared.standby;
        for (of, service) in config.servers().iter().zip(services.servers) {
            if of.standing == Standing::InFile && standby.of_server(of.id.0) != service {
                standby.set_server(of.id.0, service, self.now());
            }
        }
        for (of, service) in config.listeners().iter().zip(services.listeners) {
            if of.standing == Standing::InFile {
                standby.set_listener(of.id.0, service);
            }
        }
        standby.set_engine(services.engine);
    }

    /// Has servers, listeners and pools that the next version of the configuration brings, or brings back, begin with nothing known and
    /// nothing counted, in service or out as `services` say: before any core knows that version. Returns what was said until now of
    /// those that come back.
    pub(in crate::engine) fn begin(
        &self,
        before: &Config,
        (config, difference): (&Config, &Difference),
        services: &Services,
    ) -> CameBack {
        let standby = &self.shared.standby;
        for &server in &difference.new_servers {
            standby.forget_server(server, self.now());
            standby.set_server(server, services.servers[usize::from(server)], self.now());
        }
        for &(listener, _) in &difference.new_listeners {
            // A closing that has had this number is over.
            standby.set_listener(listener, Service::In);
            standby.set_listener(listener, services.listeners[usize::from(listener)]);
            standby.forget_metered(Limited::Listener, listener);
        }
        for &pool in &difference.new_pools {
            standby.forget_metered(Limited::Pool, pool);
        }
        let comes_back = |before: Standing, now: Standing| (before, now) == (Standing::Past, Standing::InFile);
        let mut came_back = CameBack::default();
        for (before, now) in before.servers().iter().zip(config.servers()) {
            if comes_back(before.standing, now.standing) {
                came_back.servers.push((now.id.0, standby.of_server(now.id.0)));
                standby.set_server(now.id.0, services.servers[now.id.index()], self.now());
            }
        }
        for (before, now) in before.listeners().iter().zip(config.listeners()) {
            if comes_back(before.standing, now.standing) {
                came_back.listeners.push((now.id.0, standby.of_listener(now.id.0)));
                standby.set_listener(now.id.0, services.listeners[now.id.index()]);
            }
        }
        came_back
    }

    /// There is no such version after all.
    pub(in crate::engine) fn go_back(&self, came_back: &CameBack) {
        let standby = &self.shared.standby;
        for &(server, service) in &came_back.servers {
            standby.set_server(server, service, self.now());
        }
        for &(listener, service) in &came_back.listeners {
            standby.set_listener(listener, service);
        }
    }

    /// All cores use that version: forgets whom it has not any more, and what checks have said of those that are checked no longer.
    pub(in crate::engine) fn end(&self, config: &Config, difference: &Difference) {
        let (standby, now) = (&self.shared.standby, self.now());
        for (before, server) in self.config().servers().iter().zip(config.servers()) {
            if (before.standing == Standing::InFile) != (server.standing == Standing::InFile) {
                standby.note_change(server.id.0, now);
            }
        }
        for &server in &difference.past_servers {
            standby.forget_server(server, now);
        }
        for &server in &difference.checks {
            if config.servers()[usize::from(server)].check.is_none() {
                standby.server(server).forget_checks();
                standby.note_change(server, now);
            }
        }
    }

    /// Has all cores end the open connections of what is out of service, evenly over a time or, if there is none, as fast as they
    /// can; does not wait for that. A closing of it that is under way is over.
    ///
    /// # Errors
    /// A sentence: there is nothing of that name, it is in service, too many closings are under way, or a core does not come round.
    pub fn close(&self, subject: Subject<'_>, over: Duration) -> Result<(), String> {
        let standby = &self.shared.standby;
        let numbers = numbers(&self.config(), subject)?;
        let is_out = match &numbers {
            Numbers::Servers(servers) => servers.iter().all(|server| standby.has_server(*server)),
            Numbers::Listener(listener) => standby.has_listener(*listener),
            Numbers::Engine => standby.has_engine(),
        };
        if !is_out {
            return Err(format!("{subject} is in service: it would get new connections"));
        }
        let mut closings = self.shared.closings.lock().unwrap_or_else(PoisonError::into_inner);
        let number = closings.take(Instant::now(), over);
        let number = number.ok_or_else(|| format!("{MOST_CLOSINGS} closings are under way"))?;
        match numbers {
            Numbers::Servers(servers) => servers.iter().for_each(|server| standby.close_server(*server, number)),
            Numbers::Listener(listener) => standby.close_listener(listener, number),
            Numbers::Engine => standby.close_engine(number),
        }
        for (core, commander) in self.cores().zip(&self.shared.commanders) {
            let mut commander = commander.lock().unwrap_or_else(PoisonError::into_inner);
            let closed = commander.close(Closing { number, over }, SILENCE);
            closed.map_err(|error| format!("core {core}: {error}"))?;
        }
        Ok(())
    }
}

/// What a name stands for: that in the file, or of servers and listeners the last that was there, of which connections may be left.
fn numbers(config: &Config, subject: Subject<'_>) -> Result<Numbers, String> {
    let unknown = || format!("there is no {subject}");
    Ok(match subject {
        Subject::Server(name) => {
            let server = config.find_server(name).ok_or_else(unknown)?;
            Numbers::Servers(vec![server.0])
        }
        Subject::Pool(name) => {
            let pool = config.find_pool(name).ok_or_else(unknown)?;
            let members = config.pool(pool).members.iter();
            Numbers::Servers(members.map(|member| member.server.0).collect())
        }
        Subject::Listener(name) => Numbers::Listener(config.find_listener(name).ok_or_else(unknown)?.0),
        Subject::Engine => Numbers::Engine,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closing_has_a_number_of_its_own_until_it_is_over() {
        let (mut numbers, now, hour) = (ClosingNumbers::default(), Instant::now(), Duration::from_secs(3600));
        let taken: Vec<_> = (0..MOST_CLOSINGS).filter_map(|_| numbers.take(now, hour)).collect();
        assert_eq!(taken, (1..=MOST_CLOSINGS).collect::<Vec<_>>());
        assert_eq!(numbers.take(now, hour), None);
        assert_eq!(numbers.take(now + hour + LINGERS, hour), Some(1));
    }
}
