"""Environments of the tasks of control."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Room(gym.Env):
    """Walk from the middle of a corridor to its right end."""

    observation_space = spaces.Box(-2.0, 2.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, size=5, render_mode=None):
        self.size, self.render_mode = size, render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = self.np_random.uniform(-1, 1), 0
        return self.see(), {}

    def step(self, action):
        self.place, self.time = self.place + (1 if action else -1), self.time + 1
        there = abs(self.place) >= self.size
        return self.see(), float(self.place >= self.size), there, self.time >= 50, {}

    def see(self):
        return np.array([self.place / self.size], np.float32)


class Camera(Room):
    """The same, seen from above."""

    observation_space = spaces.Box(0, 255, (36, 36, 3), np.uint8)

    def see(self):
        picture = np.zeros((36, 36, 3), np.uint8)
        left = round(18 + 3 * self.place)
        picture[:, left : left + 3] = 255
        return picture


class Both(Camera):
    """The picture, and the speed as a number."""

    observation_space = spaces.Dict(camera=Camera.observation_space, time=spaces.Box(0.0, 1.0, (1,), np.float32))

    def see(self):
        return {"camera": super().see(), "time": np.array([self.time / 50], np.float32)}


class Walls(Room):
    """Steps to the left are not allowed left of the middle."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], self.allowed()

    def step(self, action):
        return *super().step(action)[:4], self.allowed()

    def allowed(self):
        return {"action_mask": np.array([self.place > -1, True], np.int8)}
