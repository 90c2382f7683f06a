"""The inventory of devices: which exist, which are used, and why the others are not.

    spec             text                        -> DeviceSpec
    nvml             the driver                  -> NvmlMachine      seam
    tensorflow_view  TensorFlow                  -> TensorFlowView   seam
    join             all of these                -> Inventory        pure
    discover         reads all seams and joins them
    names            names of devices            <-> TensorFlow's names
    table            Inventory                   -> text
    layout           spec and inventory          -> Layout           pure
    use              a layout, on a runtime      -> UsedDevice, ...

Importing it does not import TensorFlow.
"""

from evener.devices.inventory import Inventory, inventory
from evener.devices.use import UsedDevice, resolve_devices, use_devices

__all__ = ["Inventory", "UsedDevice", "inventory", "resolve_devices", "use_devices"]
