//! `proxyengine devices` on machines that are directories: what it would do, what it writes, and what it refuses.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use proxyengine::config::Config;
use proxyengine::devices::{DevicesError, Step, plan, take};
use proxyengine::doctor::Root;
use tempfile::TempDir;

const NIC: &str = "0000:07:00.0";
const PAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// A machine's files.
struct Machine(TempDir);

impl Machine {
    /// A NIC on ixgbe behind an IOMMU, and as many free hugepages of 2 MiB.
    fn new(free: u64) -> Self {
        let machine = Self(tempfile::tempdir().expect("a directory"));
        machine.put(&format!("/sys/bus/pci/devices/{NIC}/class"), "0x020000");
        machine.put(&format!("/sys/bus/pci/devices/{NIC}/net/eth1/ifindex"), "3");
        machine.bound_to("ixgbe");
        machine.put("/sys/bus/pci/drivers/vfio-pci/new_id", "");
        machine.put("/sys/kernel/iommu_groups/0/type", "DMA");
        machine.pages(PAGES, free);
        machine
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path.trim_start_matches('/'))
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, text).expect("written");
    }

    fn pages(&self, directory: &str, free: u64) {
        self.put(&format!("{directory}/nr_hugepages"), &free.to_string());
        self.put(&format!("{directory}/free_hugepages"), &free.to_string());
    }

    fn bound_to(&self, driver: &str) {
        let link = self.path(&format!("/sys/bus/pci/devices/{NIC}/driver"));
        let _ = fs::remove_file(&link);
        self.put(&format!("/sys/bus/pci/drivers/{driver}/new_id"), "");
        symlink(format!("../../drivers/{driver}"), link).expect("a link");
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn root(&self) -> Root {
        Root::at(self.0.path())
    }

    fn plan(&self, device: &str) -> Result<Vec<Step>, DevicesError> {
        plan(&self.root(), &config(device))
    }
}

/// 256 MiB, workers on cores 0 and 1.
fn config(device: &str) -> Config {
    let text = format!(
        r#"
        [engine]
        cores = [0, 1]
        memory_mib = 256

        [[port]]
        name = "cable"
        device = "{device}"
        addresses = ["10.0.0.1/24"]

        [[listener]]
        name = "web"
        addresses = ["10.0.0.1:80"]
        default = "pool"

        [[pool]]
        name = "pool"
        servers = [{{ name = "one", address = "10.0.0.9:80" }}]
        "#
    );
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("engine.toml");
    fs::write(&file, text).expect("written");
    Config::load(&file).unwrap_or_else(|error| panic!("{error}"))
}

fn reserve(directory: &str, count: u64, needed: bool) -> Step {
    let directory = directory.to_owned();
    Step::Reserve {
        directory,
        count,
        needed,
    }
}

fn bind(from: Option<&str>) -> Step {
    let (address, from) = (NIC.to_owned(), from.map(str::to_owned));
    Step::Bind { address, from }
}

#[test]
fn missing_pages_are_reserved_and_the_nic_is_bound() {
    let machine = Machine::new(28);
    let steps = machine.plan(NIC).expect("a plan");
    assert_eq!(steps, [reserve(PAGES, 128, true), bind(Some("ixgbe"))]);
    // A kernel in which the driver is not loaded yet.
    fs::remove_dir_all(machine.path("/sys/bus/pci/drivers/vfio-pci")).expect("removed");
    assert_eq!(machine.plan(NIC).expect("a plan")[1], Step::Load("vfio-pci"));
}

#[test]
fn what_is_done_is_not_done_again() {
    let machine = Machine::new(128);
    for driver in ["vfio-pci", "uio_pci_generic", "mlx5_core"] {
        machine.bound_to(driver);
        assert_eq!(machine.plan(NIC), Ok(vec![]), "{driver}");
    }
}

#[test]
fn a_port_on_an_interface_would_like_pages_and_binds_nothing() {
    let machine = Machine::new(0);
    let steps = machine.plan("net_af_packet0,iface=eth1").expect("a plan");
    assert_eq!(steps, [reserve(PAGES, 128, false)]);
}

#[test]
fn pages_are_reserved_where_the_cores_are() {
    let machine = Machine::new(1000);
    machine.put("/sys/devices/system/cpu/cpu0/node0/cpulist", "");
    machine.put("/sys/devices/system/cpu/cpu1/node1/cpulist", "");
    let of_node = |node| format!("/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB");
    machine.pages(&of_node(0), 64);
    machine.pages(&of_node(1), 4);
    let steps = machine.plan(NIC).expect("a plan");
    assert_eq!(steps, [reserve(&of_node(1), 64, true), bind(Some("ixgbe"))]);
}

#[test]
fn what_cannot_or_must_not_be_taken_is_refused_before_the_first_step() {
    let (port, address) = (String::from("cable"), NIC.to_owned());

    let machine = Machine::new(0);
    machine.put("/proc/net/route", "Iface Destination Gateway\neth1 00000000 0100000A\n");
    let refusal = machine.plan(NIC).expect_err("the way out");
    let (of, at) = (port.clone(), address.clone());
    assert_eq!(refusal, DevicesError::WayOut { port: of, address: at });

    let machine = Machine::new(0);
    fs::remove_dir_all(machine.path("/sys/kernel/iommu_groups/0")).expect("removed");
    let refusal = machine.plan(NIC).expect_err("no IOMMU");
    assert!(refusal.to_string().contains("intel_iommu=on"), "{refusal}");
    assert_eq!(refusal, DevicesError::NoIommu { port, address });

    let refusal = machine.plan("0000:08:00.0").expect_err("no such device");
    assert!(refusal.to_string().contains("lspci -D"), "{refusal}");
}

#[test]
fn binding_names_the_driver_and_leaves_no_override() {
    let machine = Machine::new(0);
    machine.put("/sys/bus/pci/drivers_probe", "");
    // The kernel would move the link; here it stays where it is.
    machine.bound_to("vfio-pci");
    take(&machine.root(), &bind(Some("ixgbe"))).expect("bound");
    assert_eq!(machine.read("/sys/bus/pci/drivers_probe"), NIC);
    assert_eq!(machine.read("/sys/bus/pci/drivers/vfio-pci/unbind"), NIC);
    let file = format!("/sys/bus/pci/devices/{NIC}/driver_override");
    assert_eq!(machine.read(&file), "\n");

    machine.bound_to("ixgbe");
    let refusal = take(&machine.root(), &bind(None)).expect_err("still on ixgbe");
    assert_eq!(
        refusal,
        DevicesError::NotBound {
            address: NIC.to_owned()
        }
    );
}

#[test]
fn pages_are_written_and_a_file_that_is_not_there_is_named() {
    let machine = Machine::new(0);
    take(&machine.root(), &reserve(PAGES, 128, true)).expect("reserved");
    assert_eq!(machine.read(&format!("{PAGES}/nr_hugepages")), "128");
    let refusal = take(&machine.root(), &reserve("/sys/nowhere", 1, true)).expect_err("no such file");
    assert!(
        refusal.to_string().starts_with("/sys/nowhere/nr_hugepages"),
        "{refusal}"
    );
}
