//! What an operator has changed over the control socket: it goes on through reloads and restarts until somebody says otherwise, or the
//! file says something else of the same thing.
//!
//! A change stands beside what the file said of its thing when it was made: a server's address, a listener's addresses, the log's level.
//! The file on disk is written anew with every change, and then takes the place of the one before: it is whole, whenever the engine ends.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use splice::standby::Service;

use crate::config::{Config, Standing};
use crate::engine::{Services, Subject, Watch};
use crate::log_levels::LogLevels;

/// What the file on disk begins with.
const FORMAT: &str = "proxyengine journal 1";

/// A file that is longer is none of ours.
const LONGEST: u64 = 16 << 20;

/// Something that is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Whether a subject takes connections.
    Service(Subject<'a>, Service),
    /// The levels of the log.
    Log(&'a str),
    /// Whether session records are written.
    Records(bool),
    /// Whether addresses of listeners are answered for.
    Announce(bool),
}

/// The same as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    what: String,
    name: String,
    is: String,
    /// What the file said of it.
    of: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: String,
    changes: Vec<Kept>,
}

/// The changes that hold, in the order in which they were made. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Journal(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    path: Option<PathBuf>,
    changes: Mutex<Vec<Kept>>,
}

/// The file of this configuration's engine.
pub fn path(config: &Config) -> Option<PathBuf> {
    let of_system = || {
        let folders = std::env::var_os("STATE_DIRECTORY")?;
        std::env::split_paths(&folders)
            .next()
            .map(|folder| folder.join("journal"))
    };
    config.control().journal.clone().or_else(of_system)
}

impl Journal {
    /// What is kept in a file, which need not be there; without one it is kept as long as the engine runs. A file that is not
    /// whole, or not a journal, is put aside with `.refused` behind its name, and the log says why.
    pub fn open(path: Option<PathBuf>) -> Self {
        let changes = path.as_deref().map_or(Ok(Vec::new()), read);
        let mut changes = changes.unwrap_or_else(|reason| {
            // There is none without a path.
            let path = path.clone().unwrap_or_default();
            let aside = with_ending(&path, ".refused");
            log::warn!("{}: {reason}; nothing of it holds", path.display());
            if let Err(error) = std::fs::rename(&path, &aside) {
                log::warn!("{} cannot be put aside: {error}", path.display());
            }
            Vec::new()
        });
        changes.retain(|kept| !kept.ends_with_the_engine());
        let changes = Mutex::new(changes);
        Self(Arc::new(Inner { path, changes }))
    }

    /// Makes a change, and keeps it.
    ///
    /// # Errors
    /// A sentence: there is nothing of that name, or these are no levels.
    pub(crate) fn make(&self, watch: &Watch, levels: &LogLevels, change: &Change<'_>) -> Result<(), String> {
        // What holds is not put in order meanwhile.
        let mut changes = self.lock();
        change.make(watch, levels)?;
        self.note_in(&mut changes, Kept::of(change, &watch.config()));
        Ok(())
    }

    /// Keeps a change that has been made to an engine that runs with this configuration.
    pub fn note(&self, config: &Config, change: &Change<'_>) {
        self.note_in(&mut self.lock(), Kept::of(change, config));
    }

    fn note_in(&self, changes: &mut Vec<Kept>, kept: Kept) {
        changes.retain(|before| (&before.what, &before.name) != (&kept.what, &kept.name));
        changes.push(kept);
        // What is in service because nobody has said otherwise needs no word.
        while changes.first().is_some_and(|first| first.is == READY) {
            changes.remove(0);
        }
        self.write(changes);
    }

    /// Has the changes that will hold do so in an engine that is about to begin. Which these are is settled by
    /// [`apply`](Self::apply) when it has begun.
    pub fn prepare(&self, watch: &Watch, levels: &LogLevels) {
        let holding = self.holding(&watch.config());
        for change in holding.iter().filter_map(|kept| kept.change().ok()) {
            if !matches!(change, Change::Service(..))
                && let Err(reason) = change.make(watch, levels)
            {
                log::info!("what ctl has changed is not made: {reason}");
            }
        }
        watch.set_services(&services(&holding));
    }

    /// Makes the changes again, to an engine that has begun or goes on with another version of its file, but for those of which
    /// the file says something else now: these are forgotten. What no change that holds names is in service.
    pub fn apply(&self, watch: &Watch, levels: &LogLevels) {
        let config = watch.config();
        let mut changes = self.lock();
        let before = changes.len();
        changes.retain(|kept| {
            let Ok(change) = kept.change() else { return false };
            let now = of_file(&change, &config);
            // DNS may name it again: the file has said nothing else of it.
            if now.is_empty() && change.is_of_server_by_name(&config) {
                return true;
            }
            let result = match (kept.of == now, &change) {
                (false, _) => Err("the file says something else of it".to_owned()),
                // All of these are made together.
                (true, Change::Service(subject, _)) => watch.find(*subject),
                (true, _) => change.make(watch, levels),
            };
            if let Err(reason) = &result {
                log::info!("what ctl has changed holds no longer: {kept}: {reason}");
                change.undo(watch, levels, &config);
            }
            result.is_ok()
        });
        watch.set_services(&services(&changes));
        if changes.len() != before {
            self.write(&changes);
        }
    }

    /// What is in service and out in a version of the configuration, by the changes that will hold in it.
    pub fn services(&self, config: &Config) -> Services {
        Services::of(config, &services(&self.holding(config)))
    }

    /// The changes of which a version of the configuration says what the file said when they were made.
    fn holding(&self, config: &Config) -> Vec<Kept> {
        let holds = |kept: &&Kept| kept.change().is_ok_and(|change| kept.of == of_file(&change, config));
        self.lock().iter().filter(holds).cloned().collect()
    }

    /// Forgets all changes, and has the engine do what its file says.
    pub fn reset(&self, watch: &Watch, levels: &LogLevels) {
        let config = watch.config();
        let changes = std::mem::take(&mut *self.lock());
        for change in changes.iter().filter_map(|kept| kept.change().ok()) {
            change.undo(watch, levels, &config);
        }
        watch.set_services(&[]);
        self.write(&[]);
    }

    /// A line for each change.
    pub fn lines(&self) -> String {
        self.lock().iter().map(|kept| format!("ctl {kept}\n")).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Kept>> {
        self.0.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, changes: &[Kept]) {
        let Some(path) = &self.0.path else { return };
        if let Err(error) = write(path, changes) {
            log::error!(
                "{}: {error}; what ctl changes will not outlive the engine",
                path.display()
            );
        }
    }
}

/// What is in service or out, in the order in which that was said.
fn services(changes: &[Kept]) -> Vec<(Subject<'_>, Service)> {
    let service = |kept| match Kept::change(kept) {
        Ok(Change::Service(subject, service)) => Some((subject, service)),
        _ => None,
    };
    changes.iter().filter_map(service).collect()
}

const READY: &str = "ready";

fn word_of(service: Service) -> &'static str {
    match service {
        Service::In => READY,
        Service::Drained => "drain",
        Service::InMaintenance => "maint",
    }
}

fn on_or_off(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

/// What the file says of the thing that is changed.
fn of_file(change: &Change<'_>, config: &Config) -> String {
    let in_file = |standing| standing == Standing::InFile;
    match change {
        Change::Service(Subject::Server(name), _) => {
            let mut servers = config.servers().iter().filter(|server| in_file(server.standing));
            let server = servers.find(|server| server.name == *name);
            server.map_or_else(String::new, |server| server.address.to_string())
        }
        Change::Service(Subject::Listener(name), _) => {
            let mut listeners = config.listeners().iter().filter(|listener| in_file(listener.standing));
            let listener = listeners.find(|listener| listener.name == *name);
            listener.map_or_else(String::new, |listener| format!("{:?}", listener.addresses))
        }
        Change::Service(Subject::Pool(_) | Subject::Engine, _) => String::new(),
        Change::Log(_) => config.log_level().to_string(),
        Change::Records(_) => config.records().len().to_string(),
        Change::Announce(_) => on_or_off(config.engine().announce).to_owned(),
    }
}

impl Change<'_> {
    /// Whether it is of a server that DNS names, or has named, for an entry of the file.
    fn is_of_server_by_name(&self, config: &Config) -> bool {
        let Change::Service(Subject::Server(name), _) = self else {
            return false;
        };
        let is_it = |entry: &str| name.strip_prefix(entry).is_some_and(|rest| rest.starts_with('@'));
        config.names().any(|(_, named)| is_it(&named.name))
    }

    /// Has the engine do what its file says of the thing, but for what is in service, which is said for [all](Watch::set_services).
    fn undo(&self, watch: &Watch, levels: &LogLevels, config: &Config) {
        let of_file = match *self {
            Change::Service(..) => return,
            Change::Log(_) => Change::Log(config.log_level().as_str()),
            Change::Records(_) => Change::Records(true),
            Change::Announce(_) => Change::Announce(config.engine().announce),
        };
        if let Err(reason) = of_file.make(watch, levels) {
            log::warn!("what ctl has changed goes on: {reason}");
        }
    }

    /// Has the engine do it.
    ///
    /// # Errors
    /// A sentence: there is nothing of that name, or these are no levels.
    pub(crate) fn make(&self, watch: &Watch, levels: &LogLevels) -> Result<(), String> {
        match *self {
            Change::Service(subject, service) => watch.set_service(subject, service),
            Change::Log(directives) => levels.set(directives),
            Change::Records(keep) => {
                watch.records().keep(keep);
                Ok(())
            }
            Change::Announce(announces) => {
                watch.announce(announces);
                Ok(())
            }
        }
    }
}

impl Kept {
    /// Who answers for addresses that the file leaves to another is that other one, as soon as this engine has ended.
    fn ends_with_the_engine(&self) -> bool {
        (self.what.as_str(), self.is.as_str(), self.of.as_str()) == ("announce", "on", "off")
    }

    fn of(change: &Change<'_>, config: &Config) -> Self {
        let (what, name, is) = match *change {
            Change::Service(subject, service) => {
                let (what, name) = match subject {
                    Subject::Server(name) => ("server", name),
                    Subject::Pool(name) => ("pool", name),
                    Subject::Listener(name) => ("listener", name),
                    Subject::Engine => ("engine", ""),
                };
                (what, name, word_of(service))
            }
            Change::Log(directives) => ("log", "", directives),
            Change::Records(keep) => ("records", "", on_or_off(keep)),
            Change::Announce(announces) => ("announce", "", on_or_off(announces)),
        };
        Self {
            what: what.to_owned(),
            name: name.to_owned(),
            is: is.to_owned(),
            of: of_file(change, config),
        }
    }

    fn change(&self) -> Result<Change<'_>, String> {
        let is_on = || match self.is.as_str() {
            "on" => Ok(true),
            "off" => Ok(false),
            other => Err(format!("{other} is neither on nor off")),
        };
        match self.what.as_str() {
            "log" => Ok(Change::Log(&self.is)),
            "records" => is_on().map(Change::Records),
            "announce" => is_on().map(Change::Announce),
            what => {
                let services = [Service::In, Service::Drained, Service::InMaintenance];
                let service = services.into_iter().find(|service| word_of(*service) == self.is);
                let service = service.ok_or_else(|| format!("{} is none of drain, maint, ready", self.is))?;
                Ok(Change::Service(Subject::new(what, &self.name)?, service))
            }
        }
    }
}

impl std::fmt::Display for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words = [self.what.as_str(), &self.name, &self.is];
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        f.write_str(&words.join(" "))?;
        match self.of.as_str() {
            "" => Ok(()),
            of => write!(f, " (file: {of})"),
        }
    }
}

/// A file of the state folder; nothing if it is not there.
pub(crate) fn read_whole(path: &Path) -> io::Result<Option<String>> {
    let mut text = String::new();
    match File::open(path) {
        Ok(file) => file.take(LONGEST).read_to_string(&mut text).map(|_| Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn read(path: &Path) -> Result<Vec<Kept>, String> {
    let Some(text) = read_whole(path).map_err(|error| error.to_string())? else {
        return Ok(Vec::new());
    };
    let whole: Document = serde_json::from_str(&text).map_err(|error| format!("this is no whole journal: {error}"))?;
    if whole.format != FORMAT {
        return Err(format!("this is `{}`, not `{FORMAT}`", whole.format.escape_debug()));
    }
    for kept in &whole.changes {
        kept.change()
            .map_err(|reason| format!("this is no whole journal: {reason}"))?;
    }
    Ok(whole.changes)
}

fn write(path: &Path, changes: &[Kept]) -> io::Result<()> {
    let document = Document {
        format: FORMAT.to_owned(),
        changes: changes.to_vec(),
    };
    write_whole(path, &(serde_json::to_string_pretty(&document)? + "\n"))
}

/// Writes a file of the state folder anew: it is whole, whenever the engine ends.
pub(crate) fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let new = with_ending(path, ".new");
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(new, path)
}

/// The path with more behind it.
pub(crate) fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "[engine]\ncores = [0]\n[[port]]\nname = \"p\"\ndevice = \"net_null0\"\naddresses = [\"10.0.0.1/24\"]\n\
                        [[listener]]\nname = \"l\"\naddresses = [\"10.0.0.1:80\"]\ndefault = \"pool\"\n\
                        [[pool]]\nname = \"pool\"\nservers = [{ name = \"s\", address = \"10.0.0.9:80\" }]\n";

    fn changed(path: &Path) -> (Journal, Config) {
        let config = Config::parse(FILE, "test").unwrap_or_else(|error| panic!("{error}"));
        let journal = Journal::open(Some(path.to_owned()));
        for change in [
            Change::Service(Subject::Server("s"), Service::Drained),
            Change::Service(Subject::Engine, Service::InMaintenance),
            Change::Log("debug"),
            Change::Records(false),
            Change::Announce(false),
        ] {
            journal.note(&config, &change);
        }
        (journal, config)
    }

    #[test]
    fn changes_outlive_the_engine_in_their_order_and_the_last_of_a_thing_holds() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let (journal, config) = changed(&path);
        let again = Journal::open(Some(path.clone()));
        assert_eq!(again.lines(), journal.lines());
        assert_eq!(
            again.lines(),
            "ctl server s drain (file: 10.0.0.9:80)\nctl engine maint\nctl log debug (file: INFO)\nctl records off (file: 0)\n\
             ctl announce off (file: on)\n"
        );
        again.note(&config, &Change::Service(Subject::Engine, Service::In));
        assert!(again.lines().ends_with("ctl engine ready\n"), "{}", again.lines());
        again.note(&config, &Change::Service(Subject::Server("s"), Service::In));
        assert_eq!(again.lines().lines().count(), 5, "behind others they are said");
        let alone = Journal::default();
        alone.note(&config, &Change::Service(Subject::Engine, Service::In));
        assert_eq!(alone.lines(), "", "and first they say nothing");
    }

    #[test]
    fn who_was_the_one_that_answers_is_not_when_it_comes_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let text = FILE.replacen("[engine]", "[engine]\nannounce = \"off\"", 1);
        let config = Config::parse(&text, "test").unwrap_or_else(|error| panic!("{error}"));
        let journal = Journal::open(Some(path.clone()));
        journal.note(&config, &Change::Announce(true));
        journal.note(&config, &Change::Records(false));
        assert_eq!(journal.lines().lines().count(), 2, "a reload changes nothing of it");
        assert_eq!(Journal::open(Some(path)).lines(), "ctl records off (file: 0)\n");
    }

    #[test]
    fn a_file_that_is_cut_or_foreign_is_put_aside() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        drop(changed(&path));
        let whole = std::fs::read_to_string(&path).expect("a journal");
        let cuts = (0..whole.trim_end().len()).map(|end| whole[..end].to_owned());
        let foreign = [
            whole.replace("journal 1", "journal 2"),
            whole.replace("maint", "rest"),
            "[]".to_owned(),
        ];
        for text in cuts.chain(foreign) {
            std::fs::write(&path, &text).expect("a file");
            assert_eq!(Journal::open(Some(path.clone())).lines(), "", "{text}");
            assert!(!path.exists(), "{text}");
            let aside = std::fs::read_to_string(folder.path().join("journal.refused"));
            assert_eq!(aside.expect("the file"), text);
        }
        assert_eq!(Journal::open(Some(path)).lines(), "", "there is none");
        // What cannot be read is no reason not to start.
        assert_eq!(Journal::open(Some(folder.path().to_owned())).lines(), "");
    }
}
