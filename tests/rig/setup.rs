//! What the tests have in common: rig, servers and engine raised together, and the engine's final account checked.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use rig::engine::{Engine, EngineOptions, Report};
use rig::process::Process;
use rig::{Place, Rig, RigError, RigOptions};
use rustix::process::Signal;

/// More than any program here needs on a busy machine with two cores.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// The engine's program.
pub(crate) fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_proxyengine"))
}

/// The table that has an engine answer [`Setup::ctl`].
pub(crate) fn control(rig: &Rig) -> String {
    format!("\n[control]\nsocket = \"{}\"\n", rig.file("control").display())
}

/// A rig with the engine on it.
pub(crate) struct Setup {
    // Dropped in this order: nothing runs in a namespace that is gone.
    pub(crate) engine: Engine,
    servers: Vec<Process>,
    pub(crate) rig: Rig,
}

impl Setup {
    /// Raises a rig, starts the servers, then the engine; `None` when this machine cannot.
    pub(crate) fn new(
        rig: RigOptions,
        engine: &EngineOptions,
        tools: &[&str],
        start_servers: impl FnOnce(&Rig) -> Vec<Process>,
    ) -> Option<Self> {
        Self::with(rig, tools, start_servers, |rig| Engine::start(rig, binary(), engine))
    }

    /// The same with an engine that `start_engine` starts.
    pub(crate) fn with(
        rig: RigOptions,
        tools: &[&str],
        start_servers: impl FnOnce(&Rig) -> Vec<Process>,
        start_engine: impl FnOnce(&Rig) -> Result<Engine, RigError>,
    ) -> Option<Self> {
        let rig = Rig::for_test(rig, tools)?;
        let servers = start_servers(&rig);
        let engine = start_engine(&rig).unwrap_or_else(|error| panic!("no engine: {error}"));
        Some(Self { engine, servers, rig })
    }

    /// The same on a rig that is up, for servers and configurations that have to know it.
    pub(crate) fn on(rig: Rig, engine: &EngineOptions, start_servers: impl FnOnce(&Rig) -> Vec<Process>) -> Self {
        let servers = start_servers(&rig);
        let engine = Engine::start(&rig, binary(), engine).unwrap_or_else(|error| panic!("no engine: {error}"));
        Self { engine, servers, rig }
    }

    /// The same when the engine has learned what these servers can do: for tests of what it promises its clients.
    pub(crate) fn knowing(mut self, servers: &[&str]) -> Self {
        self.engine
            .wait_until_known(servers)
            .unwrap_or_else(|error| panic!("nothing is known of the servers: {error}"));
        self
    }

    /// Where `ctl` asks an engine whose configuration has [`control`].
    pub(crate) fn ctl(&self, arguments: &[&str]) -> String {
        let socket = self.rig.file("control").display().to_string();
        let all = [&["ctl", "--socket", &socket], arguments].concat();
        let output = self.rig.run(Place::Engine, &binary().to_string_lossy(), &all, LIMIT);
        output.expect("ctl is answered").text()
    }

    /// Stops the engine, checks that it has lost nothing, and gives back its report and the rig.
    pub(crate) fn finish(self) -> (Report, Rig) {
        let Self { engine, servers, rig } = self;
        let report = engine
            .stop(Signal::INT)
            .unwrap_or_else(|error| panic!("no orderly end: {error}"));
        drop(servers);
        assert_accounts_are_settled(&report);
        (report, rig)
    }
}

/// No buffer leaked, no record lost.
pub(crate) fn assert_accounts_are_settled(report: &Report) {
    for pointer in ["/buffers/leaked", "/records_lost"] {
        assert_eq!(
            report.number(pointer),
            0,
            "{pointer} in {}\n{}",
            report.totals,
            report.log
        );
    }
}

/// The option of curl, ping and others that chooses the address family.
pub(crate) fn family_option(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "-4" } else { "-6" }
}
